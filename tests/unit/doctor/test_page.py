from tests.unit.doctor.page import PAGE, page


def test_the_page_is_that_of_the_knowledge_base() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.unit.doctor.page"
