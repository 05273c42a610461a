from tests.unit.doctor.page import BEGIN, PAGE, page


def test_the_tables_of_the_page_are_those_of_the_knowledge_base() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BEGIN) == 1
    assert text == page(), "run: python -m tests.unit.doctor.page"
