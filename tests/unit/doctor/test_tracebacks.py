"""An exception that no row knows is answered with the line of the user's own code, and with no cause."""

from __future__ import annotations

import io

import pytest

from envkit.doctor.logs import diagnose_log
from envkit.doctor.model import Diagnosis, Verdict
from envkit.knowledge import programs

HEAD = "Traceback (most recent call last):\n"
CPYTHON = f"""{HEAD}  File "/home/u/train.py", line 88, in <module>
    main()
  File "/home/u/train.py", line 41, in main
    rate = cfg["optim"]["rate"]
KeyError: 'rate'
"""
IN_A_LIBRARY = f"""{HEAD}  File "/home/u/train.py", line 88, in <module>
    main()
  File "/opt/conda/lib/python3.11/site-packages/zoo/cage.py", line 7, in open
    raise ValueError("locked")
ValueError: locked
"""
STANDARD_LIBRARY = f"""{HEAD}  File "/home/u/train.py", line 3, in load
    random.choice(names)
  File "/usr/lib/python3.12/random.py", line 347, in choice
IndexError: Cannot choose from an empty sequence
"""
KNOWN = f"""{HEAD}  File "/home/u/train.py", line 3, in load
    json.load(file)
  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode
json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)
"""
NOTEBOOK = """KeyError                                  Traceback (most recent call last)
Cell In[38], line 2
      1 # the labels
----> 2 names = labels["names"]

File ~/env/lib/python3.11/site-packages/pandas/core/frame.py:4102, in DataFrame.__getitem__(self, key)
   4101 if self.columns.nlevels > 1:
KeyError: 'names'
"""
MODULE_IN_A_NOTEBOOK = """ValueError                                Traceback (most recent call last)
File /work/data.py:12, in read(path)
     11 def read(path):
ValueError: empty
"""
RICH = """╭───────────────── Traceback (most recent call last) ─────────────────╮
│ /home/u/train.py:41 in main                                          │
│   40 def main():                                                     │
│ ❱ 41     rate = cfg["rate"]                                          │
╰──────────────────────────────────────────────────────────────────────╯
KeyError: 'rate'
"""
WINDOWS = f"""{HEAD}  File "C:\\Users\\u\\train.py", line 9, in <module>
  File "C:\\Python311\\Lib\\enum.py", line 714, in __call__
ValueError: 7 is not a color
"""


def diagnosed(text: str) -> Diagnosis:
    return diagnose_log(io.BufferedReader(io.BytesIO(text.encode())), "log")


@pytest.mark.parametrize(
    ("log", "place"),
    [
        (CPYTHON, "at /home/u/train.py:41 in main"),
        (IN_A_LIBRARY, "in a call at /home/u/train.py:88"),
        (STANDARD_LIBRARY, "in a call at /home/u/train.py:3 in load"),
        (NOTEBOOK, "in a call at Cell In[38]:2"),
        (MODULE_IN_A_NOTEBOOK, "at /work/data.py:12 in read"),
        (RICH, "at /home/u/train.py:41 in main"),
        (WINDOWS, "in a call at C:\\Users\\u\\train.py:9"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "2026-05-02T10:00:00.1Z "])
def test_the_users_line_is_named_and_no_cause(log: str, place: str, prefix: str) -> None:
    lines = log.splitlines()
    found = diagnosed("".join(f"{prefix}{line}\n" for line in lines))
    facts = dict(found.sections[0].facts)
    assert (found.verdict, found.exit_code, found.findings) == (Verdict.UNKNOWN, 5, ())
    assert facts[f"line {len(lines)} raised"] == place
    assert facts[lines[-1].partition(":")[0]] == programs.exceptions()[lines[-1].partition(":")[0]].means
    assert found.conclusion == (
        f"the program raised {lines[-1][:60]} {place}, and envkit knows no further cause (line {len(lines)})"
    )


@pytest.mark.parametrize(
    ("inner", "place"),
    [
        (
            ["transformers/trainer.py", "accelerate/optimizer.py", "accelerate/state.py"],
            "in accelerate, called by transformers, ",
        ),
        (
            ["transformers/trainer.py", "torch/nn/modules/module.py", "peft/model.py"],
            "in peft, called by transformers, ",
        ),
        (["transformers/trainer.py", "torch/optim/adamw.py"], "in torch, called by transformers, "),
        (["transformers/trainer.py", "torch/nn/modules/module.py", "transformers/models/x.py"], ""),
        (["torch/nn/modules/module.py", "peft/model.py"], ""),
        (["transformers/trainer.py", "peft/model.py", "../json/decoder.py"], ""),
    ],
)
def test_of_two_packages_the_one_that_raised_and_its_caller_are_named(inner: list[str], place: str) -> None:
    frames = [f"/env/lib/python3.10/site-packages/{name}".replace("/site-packages/..", "") for name in inner]
    log = ["Traceback (most recent call last):", '  File "/home/u/train.py", line 221, in train', "    fit()"]
    for frame in frames:
        log += [f'  File "{frame}", line 12, in step', "    step()"]
    found = diagnosed("\n".join([*log, "AttributeError: 'Optimizer' object has no attribute 'warm'"]))
    facts = dict(found.sections[0].facts)
    assert facts[f"line {len(log) + 1} raised"] == f"{place}in a call at /home/u/train.py:221 in train"


def test_the_users_line_of_a_known_failure_is_said_too() -> None:
    found = diagnosed(KNOWN)
    assert (found.verdict, found.findings[0].id) == (Verdict.NAMED, "json-not-json")
    assert dict(found.sections[0].facts)["line 5 raised"] == "in a call at /home/u/train.py:3 in load"


JOINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@pytest.mark.parametrize("sentence", JOINED)
def test_an_exception_of_a_library_has_the_place_of_the_one_it_led_to(sentence: str) -> None:
    inside = f'{HEAD}  File "/env/lib/python3.11/site-packages/pandas/core/base.py", line 9, in get_loc\nKeyError: 7\n'
    found = diagnosed(f"{inside}\n{sentence}\n\n{IN_A_LIBRARY}")
    facts = dict(found.sections[0].facts)
    assert facts["line 3 raised"] == "in a call at /home/u/train.py:88"
    assert found.conclusion.startswith("the program raised KeyError: 7 in a call at /home/u/train.py:88")
    # Without the sentence the two have nothing to do with each other.
    assert "line 3 raised" not in dict(diagnosed(f"{inside}\n\n{IN_A_LIBRARY}").sections[0].facts)


def test_an_exception_of_a_worker_is_named_where_it_was_raised() -> None:
    log = f"""{HEAD}  File "/work/train.py", line 12, in main
    for batch in loader:
ValueError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/utils/data/_utils/fetch.py", line 51, in fetch
    data = [self.dataset[idx] for idx in possibly_batched_index]
  File "/work/data.py", line 7, in __getitem__
    raise ValueError("no label")
ValueError: no label
"""
    assert diagnosed(log).conclusion.startswith(
        "the program raised ValueError: no label at /work/data.py:7 in __getitem__"
    )


def test_two_tracebacks_at_once_have_no_origin() -> None:
    frames = ('File "a.py", line 3, in f', 'File "b.py", line 9, in g')
    log = "".join(f"[rank{rank}]: {HEAD}" for rank in (0, 1))
    log += "".join(f"[rank{rank}]:   {frame}\n" for rank, frame in enumerate(frames))
    log += "".join(f"[rank{rank}]: zoo.Escaped: lion {rank}\n" for rank in (0, 1))
    assert not [name for name, _ in diagnosed(log).sections[0].facts if name.endswith("raised")]


def test_a_traceback_without_own_code_has_no_origin() -> None:
    found = diagnosed(
        f'{HEAD}  File "/env/lib/python3.11/site-packages/zoo/cage.py", line 7, in open\nValueError: locked\n'
    )
    assert not [name for name, _ in found.sections[0].facts if name.endswith("raised")]
    assert found.conclusion == "the log shows a failure that envkit does not recognize (line 3)"


def test_a_cause_comes_before_the_line_of_code() -> None:
    found = diagnosed(CPYTHON.replace("KeyError: 'rate'", "ModuleNotFoundError: No module named 'einops'"))
    assert (found.verdict, [one.id for one in found.findings]) == (Verdict.NAMED, ["module-missing"])


def test_the_origins_of_many_exceptions_take_no_memory() -> None:
    found = diagnosed(CPYTHON * 500)
    facts = found.sections[0].facts
    # The first and the last four are kept, each with its place.
    assert sum(name.endswith(" raised") for name, _ in facts) == 8


@pytest.mark.parametrize("name", programs.exceptions())
def test_an_exception_of_python_is_explained_at_the_start_of_a_line_alone(name: str) -> None:
    found = programs.exception_in(f"{name}: x")
    assert found is not None
    assert found.means
    assert programs.exception_in(f"the {name}: x") is None
