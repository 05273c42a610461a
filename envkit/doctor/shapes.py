"""The shapes of lines that show a failure or a good end, whatever the program and its message.

No list of messages is complete, so a failure is recognized by how programs announce one: `TOOL: error:`, an exception's
name before a colon, an exit code that is not 0, a state in which Slurm or Kubernetes ends a job. A *sure* sign is a
failure of something; a *weak* one ("failed", "cannot") is also found in logs of jobs that go well.

All repetitions are bounded, so that a hostile line takes no longer than others. The text is a line without the prefixes
of engines (`logtext.plain`).
"""

from __future__ import annotations

import re
from enum import IntEnum

from envkit.doctor import locales
from envkit.knowledge import programs
from envkit.knowledge.programs import FAILED, RUNS, WELL

WORDS = (
    "error", "exception", "fatal", "panic", "kill", "abort", "traceback", "command not found", "terminate",
    "critical", "fail", "core dump", "bus error", "illegal instruction", "nvrm", "xid", "exit", "returned",
    "status=", "warning  ", "nccl warn", "backoff", "evict", "time limit", "cancelled", "timeout", "timed out",
    "node_fail", "preempt", "out of memory", "out_of_me", "oom", "cannot", "could not", "couldn't", "can't",
    "unable to", "not permitted", "denied", "refused", "no such", "not found", "no devices were found",
    "not allowed", "is configured", "invalid", "corrupt", "mismatch", "not supported", "interrupt", "deadline",
    "errimagepull", "containercannotrun", "segmentation fault", "unexpected", "rc=",
    "problems while solving", "nothing provides", "repo priority", "\u00d7 ",
    ": line ", "sh: ", "没有那个文件", *(text.lower() for text in locales.ALL),
)  # fmt: skip
"""A line without one of these shows no failure by its words, unless it has the shape of an exception's name."""


class Sign(IntEnum):
    """How sure a line shows a failure."""

    NONE = 0
    WEAK = 1
    SURE = 2


def _any(*texts: str) -> str:
    return f"(?:{'|'.join(re.escape(text) for text in texts)})"


# The names that Python gives to exceptions which do not end in Error or Exception, alone at the start of a line.
_NAMES = r"KeyboardInterrupt|StopIteration|StopAsyncIteration|GeneratorExit|SystemExit: [1-9]"
_TOOL = r"[A-Za-z/][\w./+-]{0,60}(?:\[\d{1,10}\])?"
STATE_WORDS = tuple(state.name.lower() for state in programs.states() if state.ends == FAILED)
"""The same for the states in which a scheduler or an engine says that a job failed."""
_SLURM = programs.alternatives("Slurm", FAILED)
_SYSTEMS = "|".join(programs.alternatives(system, FAILED) for system in ("enroot", "pyxis"))
_ALONE = "|".join(programs.alternatives(system, FAILED, alone=True) for system in ("Kubernetes", "Compose"))
_UP = programs.alternatives("Kubernetes", RUNS, alone=True)
_WELL = programs.alternatives("Kubernetes", WELL, alone=True)
_SURE = re.compile(
    # Exceptions: a name of any kind that ends in Error or Exception, and dotted ones of any name.
    r"^(?:(?:E {1,8})?[A-Za-z_][\w.]{0,100})?(?:Error|Exception)(?::|$|\()"
    r"|^(?:[A-Za-z_]\w{0,60}\.){1,8}[A-Z]\w{0,60}: \S"
    rf"|^(?:{_NAMES})"
    r"|Traceback \(most recent call last\)|^Exception in thread |\bterminate called |^Fatal Python error"
    r"|^thread '[^']{0,80}' panicked|^panic: "
    # TOOL: error: text, but not "top-1: error: 0.12".
    rf"|^(?:{_TOOL}: ){{0,3}}(?:fatal )?error: {{0,8}}[^\d\s.]"
    r"|^(?:E: |ERROR\b|Error: |ERR.\[|FATAL\b|FAILED\b)|^(?:docker: )?Error response from daemon"
    rf"|^(?:{_TOOL}:? )?fatal {{0,6}}:"
    r"| [-|] (?:ERROR|CRITICAL|FATAL) {1,4}[-|] |\[(?:ERROR|CRITICAL|FATAL|F|E)\]|^\[?[EF]\d{3,4} \d\d:\d\d:"
    r"|\blevel=(?:error|fatal|panic)\b|\"level\": {0,2}\"(?:error|fatal|panic)\"|^CMake Error\b"
    # Shells: `bash: x: Permission denied`, `run.sh: line 3: x: unbound variable`.
    r"|^-?(?:ba|z|k|da)?sh: (?!warning)|^\S{1,80}: line \d{1,6}: (?!warning)"
    r"|\(\d{1,7}(?:,\d{1,7})?\): (?:fatal )?error\b|\b(?:exited on|killed by|died from) signal \d"
    r"|:\d{1,7}(?::\d{1,7})?: (?:fatal )?error: |^make(?:\[\d{1,4}\])?: \*\*\* |: command not found$"
    # Signals, as shells print them.
    r"|\(core dumped\)|^(?:Killed|Aborted|Terminated|Bus error|Segmentation fault|Illegal instruction)\b"
    r"|line \d{1,6}: {1,8}\d{1,10} [A-Z][a-z]{3,12}"
    rf"|{_any(*locales.CORE, *locales.CRASH, *locales.OTHER_SIGNALS, *locales.NOT_FOUND, *locales.FATAL)}"
    rf"|(?:^|\d {{1,8}}){_any(*locales.KILLED)}|\bld: .{{0,80}}{_any(*locales.CANNOT_FIND)}"
    r"|^\*\*\* Error in |^(?:malloc|free|realloc|munmap_chunk)\(\): |^double free or corruption|^corrupted "
    # The kernel's driver.
    r"|NVRM: .{0,160}(?:[Ff]ail|fallen off|mismatch|[Cc]annot|not supported|not responding|[Ee]rror)|\bXid \(PCI"
    r"|\bNVIDIA-SMI (?:has failed|couldn't)|^No devices were found|^Failed to initialize NVML"
    r"|\bNCCL WARN |\bvalues : [1-9]\d{0,9} FAILED"
    # The solvers of conda and mamba.
    r"|^Encountered problems while solving|\bCould not solve for environment specs|^- nothing provides "
    r"|\bis excluded by strict repo priority"
    r"|^(?:Error: {1,4})?\u00d7 \S"  # uv and pixi put a cross before an error
    # Final states of Slurm and Kubernetes.
    rf"|\bDUE TO (?:{programs.phrases('Slurm')})|\bCANCELLED AT \d|\boom[_-]kill event"
    r"|: task [\d,-]{1,40}: (?:Killed|Terminated|Exited|Out Of Memory|Aborted|Segmentation|Bus)"
    rf"|\b(?:{_SLURM})\b.{{0,80}} \d{{1,3}}:\d{{1,3}}$|(?:{_SYSTEMS})"
    rf"|\b(?:{programs.alternatives('Kubernetes', FAILED)})\b|\b(?:{programs.alternatives('Compose', FAILED)})$"
    rf"|^(?:(?:Reason|Status|State): {{1,30}})?(?:{_ALONE})$|^Warning {{1,4}}Evicted\b"
    # Exit codes that are not 0.
    r"|returned (?:a )?non-zero|returned [1-9]\d{0,2} exit status"
)
# Their digits decide, and lines that differ in digits alone are tested once.
_CODE = re.compile(
    r"\bexit(?:ed)?(?:_| )?(?:with )?(?:a )?(?:exit |return |error |status )?(?:code|status) {0,4}[:=]? {0,2}"
    r"-?[1-9]\d{0,10}\b"  # Windows has numbers such as -1073741795
    rf"|{_any(*locales.EXIT_CODE)}(?:为|是|は|:|\uff1a|은|는)? {{0,2}}-?[1-9]\d{{0,10}}(?!\d)"
    r"|\b(?:exit_?code|return_?code|ExitCode\"?) {0,4}[:=] {0,2}-?[1-9]\d{0,2}\b|\bstatus=(?:[1-9]\d{0,2})/"
    r"|failed with (?:exit code|error code|status|rc=) ?:? ?-?[1-9]\d{0,2}\b|\brc=-?[1-9]\d{0,2}\b"
    r"|\bexited \([1-9]\d{0,2}\)|^\+{1,4} exit [1-9]|^FAILED: \[code=[1-9]\d{0,2}\] ",  # the last: ninja
    re.IGNORECASE,
)
_WEAK = re.compile(
    r"\b(?:fail|failed|fails|failure)\b"
    r"|\b(?:cannot|can't|could not|couldn't|unable to|not permitted|denied|refused|not allowed)\b"
    r"|\bno such (?:file|process|device)|\bnot found\b|\btimed? ?out\b|\bout of memory\b|\bcorrupt|\bmismatch\b"
    r"|\bnot supported\b|\binvalid\b|\binterrupted\b|\baborted\b|\bkilled\b|\bcancelled\b"
    r"|\bunexpected\b|\bis not configured\b|\bis configured\b|没有那个文件"
    r"|\berror\b(?! (?:rate|bar|margin)| {0,2}[:=] {0,2}\d)",
    re.IGNORECASE,
)
_NO_FAILURE = re.compile(
    r"\b(?:0|no|without|zero) (?:files? |tests? )?(?:fail(?:ed|ures?)|errors?)\b"
    # Lines of the table that nvidia-smi -q prints.
    r"|^[\w /.-]{2,60} {4}: (?:no|none|n/a)$|\b(?:failures?|errors?)\b[\w ]{0,60} {4}: \d{1,12}$",
    re.IGNORECASE,
)
_EVENT = re.compile(r"^Warning {1,30}[A-Z]\w{2,60}\b")  # an event as `kubectl describe` prints it
# Messages of these levels are no failures, whatever they quote.
_CALM = re.compile(
    r"\b(?:INFO|DEBUG|TRACE|NOTICE)\b|\blevel=(?:info|debug|warning)\b(?! msg=\"?Error: )"
    r"|\b(?:WARNING|WARN)\b|Warning:|^\[?W\d{3,4} "
    r"|\bI (?:tensorflow|external)/"  # TensorFlow writes its levels as letters
)
_INFORMATIONAL = re.compile(
    r"\blevel=(?:info|debug)\b(?! msg=\"?Error: )"  # the validator of the GPU operator ends with such a line
    r"|^ERROR: Ignored the following (?:yanked )?versions"  # pip lists what it skipped, whether or not it finds others
    r"|^frame #\d{1,4}: "  # of a C++ stack, in which c10::Error is the name of a class
    # TensorFlow and XLA print these with the letter of an error in jobs that go well.
    r"|Unable to register cu\w{2,10} factory: Attempting to register factory for plugin|computation placer already"
    r"|NUMA node read from SysFS had negative value|could not open file to read NUMA node"
    r"|TF-TRT Warning|Could not load dynamic library 'libnvinfer|dlerror: libnvinfer"
    r"|Couldn't get ptxas version string|Failed to launch ptxas$"  # the driver compiles instead
    r"|NCCL WARN Failed to open libibverbs"  # without InfiniBand NCCL takes sockets
    r"|^#SBATCH -"  # an option that Slurm reads, such as --error=FILE
)
# A comment, a command or call that prints a text (typed, traced by `set -x`, or as the step of a Dockerfile), and
# advice that quotes a message.
_QUOTED = re.compile(
    r"^(?:\+{1,4} |\$ |> |##\[(?:group|command)\]|#\d{1,5} \[[^\]\n]{0,80}\] |\[\d{1,3}/\d{1,3}\] "
    r"|Step \d{1,4}/\d{1,4} : |--->? )?"
    r"(?:Run |RUN )?(?:.{0,160}(?:&& |; |\|\| ))?@?(?:echo|printf|write-host|Write-Host) "
    r"|^\s{0,40}(?:print|(?:log|logger|logging|warnings?|console)\.\w{1,12})\(['\"frb]"
    r"|.{0,80}\b(?:[Ii]f|[Ww]hen) you (?:see|get|encounter|run into)\b"
    # nccl-tests prints its result after a "#", and Slurm reads options there.
    r"|^(?:#(?!\d|#\[| Out of bounds values : |SBATCH -)|//|/\*|<!--|rem |REM )"
)
_SERVED = r"(?!health|metrics|ping|ready|live|favicon)\w"  # a request of a client, and not a check of the server
_JOB = r"(?:training|fine-?tuning|pre-?training|run|job|build|pipeline|experiment|everything)"
_GOOD = re.compile(
    r"^(?:all )?done\W{0,5}$|^finished\W{0,5}$|^finished training\b|\bdone training in \d|\bend of run$"
    rf"|\b{_JOB}(?: is| has| was)? (?:successfully )?(?:finished|completed?|done|succeeded)(?: successfully)?\b"
    r"|\b(?:completed|finished|built|exited|exits) successfully\b|\bis now complete\b|\bepochs completed in \d"
    r"|^results saved to\b|^job '?[\w-]{1,80}'? succeeded\b|^100% tests passed\b|^# avg bus bandwidth\b"
    r"|\bsuccessfully (?:built [0-9a-f]{12}$|tagged|installed|completed)\b"
    r"|\bexit(?:ed)?(?: with)? (?:code|status):? 0\b|\bnaming to \S{1,200} {1,200}(?:[\d.]{1,8}s ?)?(?:done)?$"
    r"|^=+ \d{1,7} passed\b(?!.{0,80}[1-9]\d{0,6} failed)|^\d{1,7} passed in |^installed \d{1,6} packages?\b"
    r"|^`Trainer\.fit` stopped: `max_(?:epochs|steps)=\d{1,9}` reached|^executing transaction: .{0,20}done$"
    # sacct, kubectl describe, kubectl get
    rf"|\b(?:{programs.alternatives('Slurm', WELL)})\b.{{0,60}} 0:0$|^reason: {{1,30}}(?:{_WELL})$"
    rf"|^(?:status|state): {{1,30}}(?:{_WELL}|{_UP})$"
    rf"|^normal {{1,30}}(?:started|completed)\b|\b[\w-]{{1,200}} +(?:1/1 +(?:{_UP})|[01]/1 +(?:{_WELL})) "
    r"|^(?:saved|wrote) (?:the )?(?:final |last |best )?(?:model|checkpoint|weights)\b|^success!{0,3}$"
    # Servers that are up or answered a client: uvicorn, Flask, Gradio, llama.cpp, SGLang, Gin (Ollama), vLLM.
    r"|^INFO: {1,8}(?:Application startup complete\.|Uvicorn running on \S)|^ ?\* Running on (?:local URL: {1,4})?http"
    r"|^Running on local URL: {1,4}http|\ball slots are idle$|\bThe server is fired up and ready to roll"
    rf"|\d{{1,3}}(?:\.\d{{1,3}}){{3}}(?::\d{{1,5}})? - .{{0,60}}"
    rf"\"(?:GET|POST) /{_SERVED}\S{{0,300}} HTTP/[12](?:\.\d)?\" 200\b"
    rf"|(?:^|\]: )\[GIN\] .{{10,60}}\| 200 \|.{{1,80}}\b(?:GET|POST) {{1,8}}\"/{_SERVED}"
    r"|\bAvg generation throughput: [\d.]{1,12} tokens/s, Running: \d"
    r"|^=========  ?ERROR SUMMARY: 0 errors$",  # of compute-sanitizer
    re.IGNORECASE,
)
# Commands that ask for the GPU, and what they print if it can be used.
_ANSWERS = (
    (re.compile(r"(?:^|[\s;&/$#>])nvidia-smi(?: -L| --list-gpus)?['\"]?$"),
     re.compile(r"^GPU \d{1,3}: .{3,100} \(UUID: (?:GPU|MIG)-[0-9a-fA-F-]{8,40}\)$")),
    (re.compile(r"\bpython[\d.]{0,5} .{0,300}\bcuda\.is_available\(\)"), re.compile(r"^(?:\S{1,40} ){0,4}True$")),
)  # fmt: skip
_PROMPT = re.compile(r"^(?:\([\w.-]{1,60}\) )?(?:\[?[\w.-]{1,60}@[^$#>]{1,160})?[$#>] ")
# Not the end, or only that of a part.
_DENIED = re.compile(
    r"\bnot (?:yet )?\w{0,12} ?(?:finished|complete|done|succe)|\bun(?:finished|success)"
    r"|\b(?:epoch|fold|stage|step) ?\d"
    r"|\b(?:of|for) (?:epoch|fold|stage|step)\b",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"(?:[a-z_]\w{0,60}\.){1,8}[A-Z]\w{0,60}: \S")


def sign(text: str) -> Sign:
    """Return how sure a line shows a failure; exit codes are not read."""
    if is_informational(text) or quoted(text):
        return Sign.NONE
    if _SURE.search(text):
        return Sign.SURE
    if _EVENT.search(text):
        return Sign.WEAK
    is_weak = _WEAK.search(text) and not _CALM.search(text) and not _NO_FAILURE.search(text)
    return Sign.WEAK if is_weak else Sign.NONE


def is_informational(text: str) -> bool:
    """Return whether an engine marks a line as information: what it quotes is no failure."""
    return _INFORMATIONAL.search(text) is not None


def has_exit_code(text: str) -> bool:
    """Return whether a line reports an exit code other than 0."""
    return _CODE.search(text) is not None and not quoted(text) and not is_informational(text)


def quoted(text: str) -> bool:
    """Return whether a line is a comment or a command that prints a text: what it quotes did not happen."""
    return _QUOTED.match(text) is not None


def is_good_end(text: str) -> bool:
    """Return whether a line says that a job ended well or runs."""
    return _GOOD.search(text) is not None and _DENIED.search(text) is None


def is_good_answer(command: str, text: str) -> bool:
    """Return whether a line at a prompt asks for the GPU, and a text answers that it can be used."""
    if not _PROMPT.match(command):
        return False
    return any(asked.search(command.rstrip()) and answer.search(text) for asked, answer in _ANSWERS)


def may_name_exception(text: str) -> bool:
    """Return whether a text has something like the dotted name of an exception and a message."""
    return _DOTTED.search(text) is not None
