"""The pages: every Python block runs and prints what the page shows, and every link leads somewhere."""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import io
import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime
import pytest

import ort_castlike
from ort_castlike import _errors
from ort_castlike._check._probe import probe_pairs

ROOT = Path(__file__).parent.parent
PAGES = (
    *sorted(path for path in ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "models").rglob("*.md")),
)
FENCE = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


class Block(NamedTuple):
    """A fenced block of a page: its language, its text, and the line that it starts on."""

    language: str
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    source = page.read_text(encoding="utf-8")
    return [
        Block(match["language"].strip(), match["text"], source.count("\n", 0, match.start()) + 2)
        for match in FENCE.finditer(source)
    ]


def has_python(page: Path) -> bool:
    return any(block.language == "python" for block in blocks(page))


def same_text(expected: str, got: str) -> bool:
    """Whether they are the same but for spaces, where "..." stands for anything."""
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    return doctest.OutputChecker().check_output(expected, got, flags)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the example models, and with the ``model.onnx`` that some pages speak of."""
    (tmp_path / "models").symlink_to(ROOT / "models", target_is_directory=True)
    shutil.copy(ROOT / "models" / "mixed_int2" / "model.onnx", tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page", [page for page in PAGES if has_python(page)], ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_every_block_runs_and_prints_what_the_page_shows(page, workplace):
    onnxruntime.set_default_logger_severity(4)
    names: dict[str, object] = {"__name__": "__main__"}
    listed = blocks(page)
    for block, following in zip(listed, [*listed[1:], None], strict=True):
        if block.language != "python":
            continue
        # Blank lines in front make a traceback name the line of the page.
        code = compile("\n" * (block.line - 1) + block.text, str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if following is not None and following.language == "text":
            assert same_text(following.text, printed.getvalue()), f"{page.name}:{following.line}\n{printed.getvalue()}"


@pytest.mark.parametrize(
    ("page", "line"),
    [(page, block.line) for page in PAGES for block in blocks(page) if block.language == "onnx"],
    ids=lambda part: part.name if isinstance(part, Path) else str(part),
)
def test_every_model_in_text_is_valid_and_loads(page, line):
    [block] = [block for block in blocks(page) if block.line == line]
    model = onnx.parser.parse_model(block.text)
    onnx.checker.check_model(model)
    ort_castlike.InferenceSession(model)
    options = onnxruntime.SessionOptions()
    ort_castlike.register(options)
    onnxruntime.InferenceSession(model.SerializeToString(), options)


def anchors(page: Path) -> set[str]:
    """What links may point to in a page, as GitHub derives it from the headings."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in HEADING.findall(text)}


@each_page
def test_every_link_leads_somewhere(page):
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"


def test_the_index_lists_every_page():
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(index.read_text(encoding="utf-8"))}
    assert {page for page in PAGES if page.is_relative_to(index.parent)} - {index} <= listed


# README.md


def comparison() -> dict[str, dict[str, int]]:
    """The table that compares: what is counted, by the start of its row, and the count for each column."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| | 1.20 |"))
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[start : start + 6]]
    return {
        row[0].split(",")[0]: {name: int(cell) for name, cell in zip(header[1:], row[1:], strict=True) if cell}
        for row in rows
    }


def test_the_readme_says_how_many_pairs_of_types_run():
    release = ".".join(onnxruntime.__version__.split(".")[:2])
    pairs = probe_pairs()
    arrays = sum(pair.stock == "arrays" for pair in pairs)
    rows = comparison()
    assert rows["pairs of types that CastLike runs right"][release] == arrays + sum(
        pair.stock == "graph" for pair in pairs
    )
    assert rows["the same from and to numpy arrays"][release] == arrays
    assert {pair.package for pair in pairs} == {"right"}
    assert len(pairs) == 576 == rows["the same from and to numpy arrays"]["this package, on each"]


def test_the_readme_says_what_the_measured_pages_say():
    rows = comparison()
    operators = json.loads((ROOT / "docs" / "support-matrix.json").read_text(encoding="utf-8"))
    for release, count in rows["operators on these types"].items():
        if release in operators:
            cells = [cell for by_operator in operators[release].values() for cell in by_operator.values()]
            assert sum(stock == "right" for stock, _ in cells) == count
            assert sum(here == "right" for _, here in cells) == len(cells) == 134
    cases = json.loads((ROOT / "docs" / "node-tests.json").read_text(encoding="utf-8"))
    for release, count in rows["ONNX's node tests of this field"].items():
        if release in cases:
            assert cases[release]["field"] == [353, count, 353]


# CONTRIBUTING.md


def test_a_new_type_is_a_row_in_the_files_that_the_page_lists():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "ort_castlike").rglob("*.py")}
    with_rows = {name for name, path in files.items() if "float6e3m2" in path.read_text(encoding="utf-8").lower()}
    assert with_rows == set(re.findall(r"^\| `(ort_castlike/[\w/]+\.py)` \|", page, re.MULTILINE))


# docs/troubleshooting.md


def message_of(node: ast.expr) -> str:
    """The text of a message in the source, "{}" for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(message_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return "{}"


@functools.cache
def source_nodes() -> tuple[ast.AST, ...]:
    files = sorted((ROOT / "ort_castlike").rglob("*.py"))
    return tuple(node for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def raised_messages() -> list[str]:
    """What the package gives to its errors as text, where that says something of its own."""
    found = []
    for node in source_nodes():
        if not (isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in ERROR_NAMES or name == "unsupported":
            texts = [message_of(argument) for argument in node.args]
            found += [text for text in texts if len(re.findall(r"\w{3}", text)) > 2]
    return found


@functools.cache
def all_texts() -> tuple[str, ...]:
    """Every text in the source, most of which are no messages; some messages are put together from several."""
    return tuple(message_of(node) for node in source_nodes() if isinstance(node, (ast.Constant, ast.JoinedStr)))


def is_listed(message: str) -> bool:
    return any(re.search(pattern, message, re.DOTALL) for pattern in LISTED)


ERROR_NAMES = {name for name in _errors.__all__ if name.endswith("Error")} | {"InvalidFeedError"}
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
OURS = [section for section in re.split(r"^## ", TROUBLES, flags=re.MULTILINE) if re.match(r"\w+Error\n", section)]
# The first column of the tables under the errors' names; an ellipsis stands for anything.
LISTED = [
    ".*".join(map(re.escape, text.removeprefix("…, ").split("…")))
    for section in OURS
    for line in section.splitlines()
    if line.startswith("| `")
    for text in re.findall(r"`([^`]+)`", line.split(" | ")[0])
]


def test_every_class_of_error_is_on_the_page():
    assert ERROR_NAMES - {"CastLikeError", "InvalidFeedError"} == set(re.findall(r"^## (\w+Error)$", TROUBLES, re.M))


def test_every_message_of_an_error_is_on_the_page():
    missing = [message for message in raised_messages() if not is_listed(message)]
    assert not missing, "add them to docs/troubleshooting.md, with what to do about them"


@pytest.mark.parametrize("pattern", LISTED)
def test_every_message_on_the_page_is_one_of_the_package(pattern):
    assert any(re.search(pattern, text, re.DOTALL) for text in all_texts())
