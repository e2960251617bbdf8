"""The part of a shell that start lines use: what a `bash -c` script does before it runs the engine."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from deployer.render.environment import SYSTEM_PATH

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.S)
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::?-([^}]*))?\}|([A-Za-z_]\w*))")
OPAQUE = re.compile(r"\$\(|`|<<|\bfor\b|\bwhile\b|\bif\b|\bcase\b|\(\)")
SEPARATORS = frozenset({"&&", ";", "\n", "||", "|", "&"})
HARMLESS = frozenset({"set", "true", ":", "echo", "umask", "sleep", "mkdir", "trap", "date"})


@dataclass
class Script:
    """What a script comes to: the last command, and what was set up for it."""

    environment: dict[str, str]
    words: list[str] = field(default_factory=list)
    working_directory: str = ""
    environment_files: list[str] = field(default_factory=list)
    virtual_environment: str = ""
    conda_root: str = ""
    remarks: list[str] = field(default_factory=list)
    not_understood: list[str] = field(default_factory=list)


def read_script(text: str, environment: dict[str, str]) -> Script:
    """Follow the statements in order; what is more than this small reading says so."""
    script = Script(dict(environment))
    text = re.sub(r'eval "\$\((\S*?conda)(?:\.exe)? shell\.\S+ hook\)"', r"source \1.hook", text)
    if OPAQUE.search(re.sub(r"'[^']*'", "", text)):
        script.not_understood.append("the script does more than set up an environment and run one command")
        return script
    try:
        statements = list(_statements(text))
    except ValueError as error:
        script.not_understood.append(f"the script cannot be read: {error}")
        return script
    for words, separator in statements:
        _take(script, words, separator)
    return script


def _statements(text: str) -> Iterator[tuple[list[str], str]]:
    """Words of each statement, quotes kept for later, and what stands behind it."""
    text = re.sub(r"\\\n", " ", text)
    lexer = shlex.shlex(text, posix=False, punctuation_chars=";&|\n<>")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    lexer.commenters = "#"
    words: list[str] = []
    for token in lexer:
        if set(token) <= set(";&|\n"):
            if words:
                yield words, token.strip("\n") or "\n"
            words = []
        else:
            words.append(token)
    if words:
        yield words, ""


def _take(script: Script, raw: list[str], separator: str) -> None:  # noqa: PLR0912 - one branch a shell word
    raw = _without_redirections(script, raw)
    words = [word for token in raw for word in _expanded(script, token)]
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        script.environment[match.group(1)] = match.group(2)
        words = words[1:]
    if words[:1] == ["exec"]:
        words = words[1:]
    if not words:
        return
    program, *arguments = words
    if program in ("source", "."):
        _source(script, arguments)
    elif program == "export":
        for match in filter(None, map(_ASSIGNMENT.fullmatch, arguments)):
            script.environment[match.group(1)] = match.group(2)
    elif program == "unset":
        for name in arguments:
            script.environment.pop(name, None)
    elif program == "cd":
        script.working_directory = arguments[0] if arguments else script.environment.get("HOME", "")
    elif program == "ulimit":
        script.remarks.append(f"`{' '.join(words)}`: limits are deploy's own (LimitNOFILE, LimitMEMLOCK)")
    elif program in ("conda", "micromamba", "mamba") and arguments[:1] == ["activate"]:
        _conda(script, arguments[1] if len(arguments) > 1 else "base")
    elif program in HARMLESS and separator:
        if program in ("mkdir", "sleep"):
            script.not_understood.append(f"`{' '.join(words)}` before the start")
    elif script.words and not (separator == "" and script.words == words):
        script.not_understood.append(f"`{' '.join(script.words)}` runs before or beside the engine")
        script.words = words
    else:
        script.words = words
    if separator in ("|", "&", "||"):
        script.not_understood.append(f"what stands behind `{separator}`")


def _without_redirections(script: Script, raw: list[str]) -> list[str]:
    kept: list[str] = []
    tokens = iter(raw)
    for token in tokens:
        if set(token) <= set("<>&") and token:
            target = next(tokens, "")
            if kept and kept[-1] in ("1", "2"):
                kept.pop()
            script.not_understood.append(
                f"redirection `{token} {target}`: the journal gets what the engine says"
            )
        else:
            kept.append(token)
    return kept


def _expanded(script: Script, token: str) -> list[str]:
    """A token without its quotes and with variables put in; unquoted ones are split."""

    def put(match: "re.Match[str]") -> str:
        name, default = match.group(1) or match.group(3), match.group(2)
        if name in script.environment:
            return script.environment[name]
        if default is None:
            script.not_understood.append(f"${name} has no value here")
        return default or ""

    pieces = re.findall(r"'[^']*'|\"(?:[^\"\\]|\\.)*\"|(?:[^'\"\\]|\\.)+", token, re.S)
    whole, quoted = "", False
    for piece in pieces:
        if piece[0] == "'":
            whole, quoted = whole + piece[1:-1], True
        elif piece[0] == '"':
            inner = _VARIABLE.sub(put, re.sub(r"\\\$", "\0", piece[1:-1]))
            whole, quoted = whole + re.sub(r"\\([\"\\`])", r"\1", inner).replace("\0", "$"), True
        else:
            whole += re.sub(r"\\(.)", r"\1", _VARIABLE.sub(put, piece))
    return [whole] if quoted or not _VARIABLE.search(token) else whole.split()


def _source(script: Script, arguments: list[str]) -> None:
    path = arguments[0] if arguments else ""
    folder, _, name = path.rpartition("/")
    if path.endswith("conda.hook"):
        script.conda_root = path.removesuffix("/bin/conda.hook").removesuffix("/condabin/conda.hook")
    elif path.endswith("/etc/profile.d/conda.sh"):
        script.conda_root = path.removesuffix("/etc/profile.d/conda.sh")
    elif name == "activate" and (len(arguments) > 1 or "conda" in folder):
        script.conda_root = folder.removesuffix("/bin")
        _conda(script, arguments[1] if len(arguments) > 1 else "base")
    elif name.startswith("activate") and folder.endswith("/bin"):
        _activate(script, folder.removesuffix("/bin"))
        script.environment["VIRTUAL_ENV"] = script.virtual_environment
    else:
        script.environment_files.append(path)


def _conda(script: Script, name: str) -> None:
    if name.startswith("/"):
        folder = name
    elif not script.conda_root:
        script.not_understood.append(f"conda activate {name}: where conda is, is not said")
        return
    else:
        folder = script.conda_root if name == "base" else f"{script.conda_root}/envs/{name}"
    _activate(script, folder)
    script.environment |= {"CONDA_PREFIX": folder, "CONDA_DEFAULT_ENV": name}


def _activate(script: Script, folder: str) -> None:
    script.virtual_environment = folder
    before = script.environment.get("PATH")
    script.environment["PATH"] = f"{folder}/bin:{before}" if before else f"{folder}/bin:{SYSTEM_PATH}"
