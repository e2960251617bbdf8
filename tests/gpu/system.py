"""The files of a few Debian packages, taken out of the base of lab hosts, for a machine that has no systemd."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.lab.base import ensure_base

# With the libraries that they need, except the C library: the machine's own is newer.
PACKAGES: Final = """
systemd systemd-sysv libsystemd-shared libsystemd0 libudev1 dbus dbus-bin dbus-daemon dbus-session-bus-common
dbus-system-bus-common libdbus-1-3 libexpat1 openssh-client openssh-server openssh-sftp-server libseccomp2 libkmod2
libcryptsetup12 libjson-c5 libdevmapper1.02.1 libfdisk1 libip4tc2 libapparmor1 libwrap0 libnsl2 libtirpc3 libpam0g
libpam-modules libpam-modules-bin libpam-runtime libaudit1 libcap-ng0 libcap2 libmount1 libblkid1 libselinux1
libpcre2-8-0 libacl1 libargon2-1 libcrypt1 libgcrypt20 libgpg-error0 libssl3 libfido2-1 libcbor0.8 libedit2 libbsd0
libmd0 libtinfo6 libgssapi-krb5-2 libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1 libcom-err2 iproute2 libmnl0
libbpf1 libelf1 libxtables12 libcap2-bin libdb5.3 liblz4-1 liblzma5 libzstd1 procps libproc2-0 sudo runit-helper ucf
init-system-helpers libncursesw6 libuuid1 libsmartcols1 mount util-linux login passwd
"""
OF_NO_USE: Final = tuple(
    f"usr/share/{name}" for name in ("doc", "man", "locale", "bash-completion", "zsh", "lintian", "info")
)
# Written by maintainer scripts, so that no package lists them.
MADE: Final = (
    "etc/pam.d/common-auth",
    "etc/pam.d/common-account",
    "etc/pam.d/common-password",
    "etc/pam.d/common-session",
    "etc/pam.d/common-session-noninteractive",
    "etc/ssh/sshd_config",
    "etc/sudoers",
)
NSPAWN: Final = "/usr/bin/systemd-nspawn"


def system_files(tree: Path) -> None:
    """Copy them into a tree, with this machine's systemd-nspawn."""
    base = ensure_base()
    for name in sorted({*_listed(base), *(name for name in MADE if (base / name).exists())}):
        source, target = base / name, tree / name
        if source.is_dir() and not source.is_symlink():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    shutil.copy2(NSPAWN, tree / NSPAWN.lstrip("/"))


def _listed(base: Path) -> Iterator[str]:
    """Every path of the packages, with the links of its folders followed (/lib is usr/lib)."""
    for package in PACKAGES.split():
        info = base / "var/lib/dpkg/info"
        lists = [path for path in (info / f"{package}:amd64.list", info / f"{package}.list") if path.exists()]
        if not lists:
            continue
        for line in lists[0].read_text().splitlines():
            folder, name = os.path.split(line)
            if not name or line == "/.":
                continue
            path = Path(os.path.realpath(f"{base}{folder}"), name)
            relative = str(path.relative_to(base))
            if os.path.lexists(path) and not relative.startswith(OF_NO_USE):
                yield relative
