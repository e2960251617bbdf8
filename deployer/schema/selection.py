"""Choosing hosts by name, glob, group, comma list and !exclusion; and naming what is not there."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase

from deployer.errors import UsageError
from deployer.schema.host import Host

Groups = Mapping[str, tuple[str, ...]]


def nearest(name: str, offered: Iterable[str]) -> str | None:
    """The offered name that was probably meant."""
    close = get_close_matches(name, list(offered), n=1, cutoff=0.6)
    return close[0] if close else None


def unknown(kind: str, name: str, offered: Iterable[str]) -> UsageError:
    """The error for a name that the inventory does not have."""
    names = list(offered)
    guess = nearest(name, names)
    message = f"no {kind} {name!r} in the inventory" + (f"; did you mean {guess!r}?" if guess else "")
    hint = f"there is: {', '.join(names)}" if names else f"the inventory has no {kind}s"
    return UsageError(message, hint=hint)


def groups_of(host: Host, groups: Groups) -> set[str]:
    """The groups of a host, named on the host or in `groups:`, and `all`."""
    listed = (
        name for name, members in groups.items() if any(fnmatchcase(host.name, each) for each in members)
    )
    return {"all", *host.groups, *listed}


def matches(host: Host, pattern: str, groups: Groups) -> bool:
    """Whether one name, glob or group names the host."""
    return fnmatchcase(host.name, pattern) or pattern in groups_of(host, groups)


def names_match(host: Host, patterns: Iterable[str], groups: Groups) -> bool:
    """Whether a list of patterns, exclusions among them, names the host."""
    words = [word.strip() for pattern in patterns for word in pattern.split(",") if word.strip()]
    wanted = [word for word in words if not word.startswith("!")]
    excluded = [word[1:] for word in words if word.startswith("!")]
    named = any(matches(host, word, groups) for word in wanted) if wanted else True
    return named and not any(matches(host, word, groups) for word in excluded)


def select_hosts(hosts: Mapping[str, Host], groups: Groups, patterns: Iterable[str]) -> tuple[Host, ...]:
    """The named hosts in inventory order; a word that names nothing is an error."""
    given = list(patterns)
    if any(not pattern.strip(" ,") for pattern in given):
        raise UsageError(
            "a host pattern is empty", hint="a variable that is not set? Leave it out to mean all"
        )
    words = [word.strip() for pattern in given for word in pattern.split(",") if word.strip()]
    for word in words:
        if not any(matches(host, word.removeprefix("!"), groups) for host in hosts.values()):
            known_groups = {name for host in hosts.values() for name in groups_of(host, groups)}
            if word in {*groups, "all"}:
                raise UsageError(f"group {word!r} has no hosts")
            raise unknown("host", word.removeprefix("!"), [*hosts, *sorted(known_groups - {"all"})])
    chosen = tuple(host for host in hosts.values() if names_match(host, words, groups))
    if not chosen and given:
        raise UsageError(f"no host is left by {','.join(given)!r}", hint=f"there is: {', '.join(hosts)}")
    return chosen
