#!/bin/sh
# Turns a fresh Debian root into the base of every lab host. Run by mmdebstrap as: base-setup.sh ROOT
set -eu
root=$1

# Nothing a test host waits for at boot.
for unit in console-getty.service getty@tty1.service getty.target e2scrub_reap.service e2scrub_all.timer \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer fstrim.timer systemd-tmpfiles-clean.timer \
    systemd-pstore.service systemd-update-utmp.service systemd-update-utmp-runlevel.service dev-hugepages.mount \
    systemd-sysctl.service systemd-ask-password-wall.path systemd-ask-password-console.path systemd-initctl.socket \
    remote-fs.target cryptsetup.target integritysetup.target veritysetup.target man-db.timer; do
    ln -sfn /dev/null "$root/etc/systemd/system/$unit"
done
# logind is started over D-Bus when asked (systemctl reboot needs it), not at boot.
rm -f "$root/usr/lib/systemd/system/multi-user.target.wants/systemd-logind.service"
ln -sfn /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"

# What makes a host itself (keys, name, machine id) is laid over the base for each host.
rm -f "$root"/etc/ssh/ssh_host_* "$root/etc/hostname" "$root/etc/resolv.conf"
: >"$root/etc/machine-id"
: >"$root/etc/resolv.conf"
cat >"$root/etc/ssh/sshd_config.d/lab.conf" <<'CONF'
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
LogLevel VERBOSE
CONF
mkdir -p "$root/etc/systemd/journald.conf.d" "$root/var/log/journal"
cat >"$root/etc/systemd/journald.conf.d/lab.conf" <<'CONF'
[Journal]
Storage=persistent
SystemMaxUse=128M
ReadKMsg=no
Audit=no
RateLimitBurst=0
CONF

# Every way into a host: root, sudo without and with a password, no sudo, other login shells, a service user.
for user in ops nosudo pwsudo; do chroot "$root" useradd --create-home --shell /bin/bash "$user"; done
chroot "$root" useradd --create-home --shell /usr/bin/tcsh opscsh
chroot "$root" useradd --create-home --shell /usr/bin/fish opsfish
chroot "$root" useradd --system --create-home --home-dir /var/lib/sglang --shell /usr/sbin/nologin sglang
echo 'pwsudo:lab-password' | chroot "$root" chpasswd
for user in ops opscsh opsfish; do echo "$user ALL=(ALL) NOPASSWD: ALL"; done >"$root/etc/sudoers.d/lab"
echo 'pwsudo ALL=(ALL) ALL' >>"$root/etc/sudoers.d/lab"
chmod 0440 "$root/etc/sudoers.d/lab"
