"""Make the survey script for a shell, and parse its output.

The script only reads. Random marks delimit each command's output, so that login messages cannot be
mistaken for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from .linux import read_linux
from .macos import read_macos
from .records import Survey

# All commands, by the name that their output is stored under.
COMMANDS = (
    "uname", "sudo", "system_profiler", "networksetup", "ifconfig", "ibv_devices", "ip_addr",
    "sys_net", "sys_thunderbolt", "sys_infiniband",
)  # fmt: skip

_SCRIPT = r"""
PATH=$PATH:/usr/sbin:/sbin:/usr/bin:/bin
LC_ALL=C; export LC_ALL PATH
MARK='@MARK@'
SYS='@SYS@'
ask() {
    name=$1; shift
    printf '\n%s begin %s\n' "$MARK" "$name"
    "$@" </dev/null 2>/dev/null
    printf '\n%s end %s %s\n' "$MARK" "$name" "$?"
}
line() { head -n 1 "$1" 2>/dev/null; }
sys_net() {
    for d in "$SYS"/class/net/*; do
        [ -e "$d/operstate" ] || continue
        printf 'name=%s\toperstate=%s\tspeed=%s\ttype=%s' "${d##*/}" "$(line "$d/operstate")" \
            "$(line "$d/speed")" "$(line "$d/type")"
        driver=$(readlink "$d/device/driver") && printf '\tdriver=%s' "${driver##*/}"
        [ -e "$d/device" ] && printf '\tphysical=1'
        [ -e "$d/bridge" ] && printf '\tbridge=1'
        { [ -e "$d/wireless" ] || [ -e "$d/phy80211" ]; } && printf '\twireless=1'
        printf '\n'
    done
}
sys_thunderbolt() {
    for d in "$SYS"/bus/thunderbolt/devices/*-*; do
        [ -e "$d" ] || continue
        printf 'name=%s\tunique_id=%s\tspeed=%s\tdevice_name=%s' "${d##*/}" \
            "$(line "$d/unique_id")" "$(line "$d/rx_speed")" "$(line "$d/device_name")"
        for n in "$d"/net/*; do [ -e "$n" ] && printf '\tnet=%s' "${n##*/}"; done
        printf '\n'
    done
}
sys_infiniband() {
    for p in "$SYS"/class/infiniband/*/ports/*; do
        [ -e "$p/state" ] || continue
        d=${p%/ports/*}
        printf 'name=%s\tport=%s\tstate=%s\trate=%s\tlink_layer=%s\tgid=%s' "${d##*/}" "${p##*/}" \
            "$(line "$p/state")" "$(line "$p/rate")" "$(line "$p/link_layer")" "$(line "$p/gids/0")"
        net=$(line "$p/gid_attrs/ndevs/0")
        for n in "$d"/device/net/*; do [ -n "$net" ] || { [ -e "$n" ] && net=${n##*/}; }; done
        printf '\tnet=%s\n' "$net"
    done
}
ask uname uname -s
@SUDO@
if [ "$(uname -s)" = Darwin ]; then
    ask system_profiler system_profiler SPThunderboltDataType -json
    ask networksetup networksetup -listallhardwareports
    ask ifconfig ifconfig -a
    ask ibv_devices ibv_devices
else
    ask ip_addr ip -j addr
    ask sys_net sys_net
    ask sys_thunderbolt sys_thunderbolt
    ask sys_infiniband sys_infiniband
fi
printf '%s all\n' "$MARK"
"""

# Only run on request: a host may log each use of sudo and mail it to the administrator.
_SUDO = """ask sudo sh -c '[ "$(id -u)" = 0 ] || sudo -n true'"""


def survey_script(mark: str, sys: str = "/sys", *, asks_sudo: bool = False) -> str:
    """Return the survey script for a POSIX shell's standard input.

    Parameters
    ----------
    mark : str
        Delimiter of each output; a random hexadecimal string.
    sys : str
        Directory of the system's devices.
    asks_sudo : bool
        Whether to test if commands can run as root.
    """
    sudo = _SUDO if asks_sudo else ""
    return _SCRIPT.replace("@SUDO@", sudo).replace("@MARK@", mark).replace("@SYS@", sys)


def read_outputs(text: str, mark: str) -> dict[str, str] | None:
    r"""Extract outputs of successful commands; None if the script was cut off.

    Examples
    --------
    >>> read_outputs("Welcome!\n\nM begin uname\nLinux\n\nM end uname 0\nM all\n", "M")
    {'uname': 'Linux\n'}
    """
    whole = re.escape(mark)
    if not re.search(rf"^{whole} all$", text, re.MULTILINE):
        return None
    pattern = rf"^{whole} begin (\w+)\n(.*?)\n?^{whole} end \1 (\d+)$"
    found = re.findall(pattern, text, re.MULTILINE | re.DOTALL)
    return {name: output for name, output, status in found if status == "0"}


def read_survey(name: str, outputs: Mapping[str, str]) -> Survey:
    """Make a survey from the outputs of a host's commands.

    Examples
    --------
    >>> read_survey("b", {"uname": "SunOS"}).notes
    ('its system is SunOS; Linux and macOS (Darwin) can be read',)
    """
    system = outputs.get("uname", "").strip()
    if not system:  # recordings made by hand may omit it
        system = "Darwin" if "system_profiler" in outputs else "Linux"
    if system == "Darwin":
        return read_macos(name, outputs)
    if system == "Linux":
        return read_linux(name, outputs)
    return Survey(
        name, system, notes=(f"its system is {system}; Linux and macOS (Darwin) can be read",)
    )
