"""The command ``ort-castlike``: what it takes, what it calls, what it exits with. docs/command-line.md describes it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from ort_castlike._completion import SHELLS, completion_script
from ort_castlike._errors import CastLikeError, FeedError, ModelError, OptionError, TargetError
from ort_castlike._errors import UnsupportedOperatorError as NoRuleError
from ort_castlike._options import LOWERINGS, ROUNDINGS, WEIGHTS
from ort_castlike._targets import resolve_target
from ort_castlike._version import __version__

if TYPE_CHECKING:
    from ort_castlike._terminal import Terminal

__all__ = ["CANNOT_REWRITE", "DIFFERS", "FAILED", "INTERRUPTED", "OK", "USAGE", "main"]

OK = 0
DIFFERS = 1  # an output, or a node, is not what it has to be
USAGE = 2  # the command line is wrong, or a file that it names is not there
CANNOT_REWRITE = 3  # the model is broken, or holds what has no rule or does not fit the target
FAILED = 4  # a run, an input or a file that is written
INTERRUPTED = 130
PIPE_CLOSED = 141

_EPILOG = """\
exit status: 0 done, and right where it was checked; 1 something differs; 2 wrong usage; 3 the model cannot be
rewritten; 4 running, reading or writing failed; 130 interrupted
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status.

    Args:
        argv: The arguments; None takes those of the process.
    """
    # What operators log is raised as an error as well.
    logging.getLogger("ort_castlike").addHandler(logging.NullHandler())
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # Nobody reads on; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


def _run(argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        arguments = _parser().parse_args(words)
    except _UsageError as error:
        print(f"{error.program}: error: {error}\nTry '{error.program} --help'.", file=sys.stderr)
        # The options were not understood, so that only the words say what was asked for.
        if "--json" in words:
            _print_error("UsageError", str(error), [str(error)])
        return USAGE
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else OK
    command: Callable[[argparse.Namespace], int] = arguments.run
    try:
        return command(arguments)
    except BrokenPipeError:
        raise
    except Exception as error:
        # Whatever it is, a user sees what to do about it, and not where in the code it came up.
        return _failed(error, arguments)


def _failed(error: Exception, arguments: argparse.Namespace) -> int:
    if arguments.debug:
        traceback.print_exception(error)
    is_ours = isinstance(error, CastLikeError)
    if is_ours:
        text = str(error)
    elif type(error).__module__.startswith("onnxruntime"):
        text = f"onnxruntime: {error}"
    else:
        text = f"{type(error).__name__}: {error}; --debug shows where, please report it"
    print(f"ort-castlike {arguments.command}: error: {text}", file=sys.stderr)
    if getattr(arguments, "json", False):
        _print_error(type(error).__name__, text, list(getattr(error, "reasons", ())) or [text])
    if isinstance(error, OptionError) and not isinstance(error, FeedError):
        return USAGE
    return CANNOT_REWRITE if isinstance(error, (ModelError, NoRuleError, TargetError)) else FAILED


class _UsageError(Exception):
    """What is wrong with the command line, and the command whose help says how it is right."""

    def __init__(self, program: str, message: str) -> None:
        super().__init__(message)
        self.program = program


class _Parser(argparse.ArgumentParser):
    """A parser that raises its errors, so that they can be printed as JSON too."""

    def error(self, message: str) -> NoReturn:
        """Raise what is wrong with the command line."""
        raise _UsageError(self.prog, message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="ort-castlike",
        description="Run ONNX models with 2-bit and other sub-byte tensors on the onnxruntime you have.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, help="print the versions of the package and of what it uses")
    parser.add_argument(
        "--print-completion",
        action=_Completion,
        choices=SHELLS,
        help='print a completion script; bash: eval "$(ort-castlike --print-completion bash)"',
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_inspect(commands)
    _add_rewrite(commands)
    _add_run(commands)
    _add_verify(commands)
    _add_matrix(commands)
    return parser


class _Version(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the versions and leave."""
        print(f"ort-castlike {__version__}")
        for name in ("onnxruntime", "onnxruntime-extensions", "onnx", "onnx-ir", "numpy", "ml_dtypes"):
            print(f"{name} {_version_of(name)}")
        parser.exit()


def _version_of(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        if name != "onnxruntime":
            return "is not installed"
        # Its packages have several names (onnxruntime-gpu).
        import onnxruntime

        return str(onnxruntime.__version__)


class _Completion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        """Print the script and leave."""
        print(completion_script(parser, values), end="")
        parser.exit()


def _add(commands: Any, name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else, on stdout")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def _add_model(parser: argparse.ArgumentParser, name: str, text: str, **kwargs: Any) -> None:
    parser.add_argument(name.lower(), metavar=name, type=_file, help=text, **kwargs)


def _add_rewrite_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lowering", choices=LOWERINGS, default="custom", help="how casts are done (custom)")
    parser.add_argument("--rounding", choices=ROUNDINGS, default="nearest_even", help="of floats (nearest_even)")
    _add_weights(parser)


def _add_weights(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", choices=WEIGHTS, default="auto", help="2-bit MatMulNBits layers (auto)")


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--target", type=_release, metavar="RELEASE", help="the oldest onnxruntime to run it on, as 1.20 (installed)"
    )


def _add_made_up_inputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        type=_assignment,
        metavar="NAME=FILE",
        help="a value for an input, from a .pb (TensorProto) or .npy file; may be repeated",
    )
    parser.add_argument("--seed", type=_count, default=0, help="of random inputs (0)")
    parser.add_argument(
        "--dim",
        action="append",
        default=[],
        type=_dim,
        metavar="NAME=N",
        help="the size of a named dimension; N alone is for all others (2)",
    )


def _add_inspect(commands: Any) -> None:
    text = "say what is emulated in a model, what a rewrite would change, and what blocks it"
    parser = _add(commands, "inspect", _inspect, text)
    _add_model(parser, "MODEL", "an ONNX file")
    _add_target(parser)
    _add_weights(parser)
    parser.add_argument("--all", action="store_true", help="list every tensor and node")


def _add_rewrite(commands: Any) -> None:
    parser = _add(commands, "rewrite", _rewrite, "rewrite a model for stock onnxruntime")
    _add_model(parser, "MODEL", "an ONNX file")
    parser.add_argument("out", metavar="OUT", type=_path, help="the file to write; it appears whole or not at all")
    _add_target(parser)
    _add_rewrite_options(parser)
    parser.add_argument("--force", action="store_true", help="overwrite OUT if it is there")
    parser.add_argument("--all", action="store_true", help="list every node")


def _add_run(commands: Any) -> None:
    parser = _add(commands, "run", _run_model, "run a model, on random inputs if none are given")
    _add_model(parser, "MODEL", "an ONNX file, rewritten or not")
    parser.add_argument("--data", metavar="DIR", type=_folder, help="ONNX test data: input_N.pb and output_N.pb")
    _add_made_up_inputs(parser)
    parser.add_argument("--output-dir", metavar="DIR", help="write inputs and outputs there, as ONNX test data")
    parser.add_argument(
        "--rtol", type=float, default=1e-3, help="tolerance for floats, as a part of the largest one (1e-3)"
    )
    parser.add_argument("--atol", type=float, default=1e-7, help="absolute tolerance for floats (1e-7)")
    _add_rewrite_options(parser)


def _add_verify(commands: Any) -> None:
    text = "compare a rewritten model, node by node, with an independent evaluation of the original"
    parser = _add(commands, "verify", _verify, text)
    _add_model(parser, "ORIGINAL", "an ONNX file")
    _add_model(parser, "REWRITTEN", "what was made of it; without it, ORIGINAL is rewritten here", nargs="?")
    _add_made_up_inputs(parser)
    parser.add_argument("--rounds", type=_count, default=2, help="how many random inputs (2)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 where a node was not compared")
    parser.add_argument("--all", action="store_true", help="list every value that differs")
    _add_target(parser)
    _add_rewrite_options(parser)


def _add_matrix(commands: Any) -> None:
    _add(commands, "matrix", _matrix, "try out which of the 576 casts the installed onnxruntime and this package run")


def _path(text: str) -> str:
    if text in ("-", "/dev/stdin", "/dev/stdout", "/dev/stderr") or text.startswith(("/dev/fd/", "/proc/self/fd/")):
        raise argparse.ArgumentTypeError(f"{text!r}: standard input and output are not supported; name a file")
    return text


def _file(text: str) -> str:
    if not os.path.isfile(_path(text)):
        what = "a folder, and not a file" if os.path.isdir(text) else "not there"
        raise argparse.ArgumentTypeError(f"{text!r} is {what}")
    return text


def _folder(text: str) -> str:
    if not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return text


def _release(text: str) -> str:
    try:
        resolve_target(text)
    except TargetError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number")
    return int(text)


def _assignment(text: str) -> tuple[str, str]:
    name, separator, value = text.rpartition("=")
    if not separator or not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=FILE")
    return name, _file(value)


def _dim(text: str) -> tuple[str, int]:
    name, _, value = text.rpartition("=")
    return name, _count(value)


def _inspect(arguments: argparse.Namespace) -> int:
    from ort_castlike._rewrite import inspect

    report = inspect(arguments.model, target=arguments.target, weights=arguments.weights)
    if arguments.json:
        _print_json(report.to_dict())
    else:
        _terminal(arguments).report(arguments.model, report)
    return CANNOT_REWRITE if report.blockers else OK


def _rewrite(arguments: argparse.Namespace) -> int:
    if os.path.exists(arguments.out) and not arguments.force:
        raise OptionError(f"{arguments.out!r} is there already; --force overwrites it")
    from ort_castlike._rewrite import rewrite_file

    report = rewrite_file(arguments.model, arguments.out, target=arguments.target, **_options(arguments))
    if arguments.json:
        _print_json({"out": arguments.out, **report.to_dict()})
    else:
        size = os.path.getsize(arguments.out)
        _terminal(arguments).rewritten(arguments.out, report, size, is_for_installed=arguments.target is None)
    return OK


def _run_model(arguments: argparse.Namespace) -> int:
    from ort_castlike._check._compare import Tolerance
    from ort_castlike._check._tensor_files import write_data_set
    from ort_castlike._check._trial import try_model

    dims, default_dim = _dims(arguments)
    trial = try_model(
        arguments.model,
        data=arguments.data,
        files=dict(arguments.input),
        seed=arguments.seed,
        dims=dims,
        default_dim=default_dim,
        tolerance=Tolerance(arguments.rtol, arguments.atol),
        options=_options(arguments),
    )
    if arguments.output_dir is not None:
        write_data_set(arguments.output_dir, trial.inputs, trial.outputs)
    if arguments.json:
        from ort_castlike._terminal import trial_as_json

        _print_json(trial_as_json(trial))
    else:
        _terminal(arguments).trial(arguments.model, trial)
    return OK if trial.is_right else DIFFERS


def _verify(arguments: argparse.Namespace) -> int:
    from ort_castlike._check._verify import verify
    from ort_castlike._terminal import progress

    dims, default_dim = _dims(arguments)
    with progress("comparing node by node") as update:
        result = verify(
            arguments.original,
            arguments.rewritten,
            target=arguments.target,
            options=_options(arguments),
            files=dict(arguments.input),
            dims=dims,
            default_dim=default_dim,
            rounds=arguments.rounds,
            seed=arguments.seed,
            progress=update,
        )
    if arguments.json:
        _print_json(result.to_dict())
    else:
        _terminal(arguments).verification(arguments.rewritten or arguments.original, result)
    if not result.is_right or (arguments.strict and result.not_compared):
        return DIFFERS
    return OK if result.compared and not result.failed else FAILED


def _matrix(arguments: argparse.Namespace) -> int:
    import dataclasses

    import onnxruntime

    from ort_castlike._check._probe import probe_pairs
    from ort_castlike._terminal import progress

    with progress("trying types") as update:
        pairs = probe_pairs(update)
    if arguments.json:
        _print_json({"onnxruntime": onnxruntime.__version__, "pairs": [dataclasses.asdict(pair) for pair in pairs]})
    else:
        _terminal(arguments).matrix(pairs, onnxruntime.__version__)
    return OK if all(pair.package == "right" for pair in pairs) else DIFFERS


def _options(arguments: argparse.Namespace) -> dict[str, str]:
    return {name: getattr(arguments, name) for name in ("lowering", "rounding", "weights")}


def _dims(arguments: argparse.Namespace) -> tuple[dict[str, int], int]:
    dims = dict(arguments.dim)
    return dims, dims.pop("", 2)


def _terminal(arguments: argparse.Namespace) -> Terminal:
    from ort_castlike._terminal import Terminal

    return Terminal(shows_all=getattr(arguments, "all", False))


def _print_error(kind: str, message: str, reasons: Sequence[str]) -> None:
    _print_json({"error": {"kind": kind, "message": message, "reasons": reasons}})


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=True))
