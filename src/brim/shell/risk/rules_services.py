"""What stands behind other programs: containers, clouds, packages and databases."""

from __future__ import annotations

import re
from typing import Final

from brim.shell.risk import rules_files as files
from brim.shell.risk.calls import Call
from brim.shell.risk.marks import UNKNOWN, is_known, plain
from brim.shell.risk.rule_kinds import Rule, always, any_of, first, flag, sub, verbs, words
from brim.shell.risk.rules_machines import STOPS

PACKAGES: Final = "removes packages"
CLOUD: Final = "removes something in the cloud"
PUBLISHES: Final = "publishes for everybody"
_SQL: Final = re.compile(
    r"\b(drop|delete|truncate|update|alter|replace\s+into|grant|revoke|overwrite)\b"
    r"|\\!|^\s*\.(shell|system|output|once|import|restore|clone)\b|dropdatabase|\.drop\s*\("
    r"|\.(delete|remove|deletemany|deleteone)\s*\(",
    re.IGNORECASE | re.MULTILINE,
)
_REDIS: Final = ("flushall", "flushdb", "del", "unlink", "shutdown", "config", "eval", "debug")
_TERMINATE: Final = re.compile(
    r"(delete|terminate|remove|destroy|purge|deregister|stop|reset|revoke|detach|disable)(-.*)?"
)


def _sql(call: Call) -> str | None:
    """Statements on the command line, piped in, or in a file that can be read."""
    said = [*call.texts, call.stdin or ""]
    said += [call.ground.text(name) or UNKNOWN for name in call.values("-f", "--file")]
    if any(_SQL.search(plain(text)) for text in said):
        return "changes or removes data in a database"
    if not all(is_known(text) for text in said):
        return "runs statements that are only known at run time"
    return None


def _redis(call: Call) -> str | None:
    operands = call.operands("-h", "-p", "-a", "-n", "-u", "--user", "--pass", "-s", "-c")
    name = operands[0].lower() if operands else (call.stdin or "").lower().strip()
    found = any(word in name.split() for word in _REDIS) or not is_known(name)
    found = found or call.has("--eval", "--pipe")
    return "removes data in a database" if found else None


def _aws(call: Call) -> str | None:
    operands = [text for text in call.texts if not text.startswith("-")]
    if operands[:2] == ["s3", "cp"] and (why := files.copied_in(call)):
        return why
    if operands[:1] == ["s3"] and (
        operands[1:2] in (["rm"], ["rb"], ["mv"]) or call.has("--delete")
    ):
        return CLOUD
    return CLOUD if any(_TERMINATE.fullmatch(plain(text)) for text in operands[:4]) else None


def _cloud(call: Call) -> str | None:
    operands = [plain(text) for text in call.texts if not text.startswith("-")]
    gone = ("rm", "rb", "del")
    return CLOUD if any(_TERMINATE.fullmatch(t) or t in gone for t in operands[:6]) else None


def _heroku(call: Call) -> str | None:
    name = plain(call.texts[0]) if call.texts else ""
    gone = name.endswith((":destroy", ":delete", ":reset", ":remove", ":unset", ":rollback"))
    return CLOUD if gone or name in ("destroy", "restart", "ps:stop") else None


_DOCKER: Final = sub(
    {
        "cp": files.copied_in, "rm": "removes containers", "rmi": "removes images", "kill": STOPS,
        "container": {"rm": "removes containers", "prune": "removes containers", "kill": STOPS},
        "image": {"rm": "removes images", "prune": "removes images", "remove": "removes images"},
        "volume": {"rm": "removes volumes", "prune": "removes volumes",
                   "remove": "removes volumes"},
        "network": {"rm": "removes networks", "prune": "removes networks",
                    "remove": "removes networks"},
        "system": {"prune": "removes whatever is not in use"},
        "builder": {"prune": "removes the build cache"},
        "buildx": {"prune": "removes the build cache", "rm": "removes a builder"},
        "context": {"rm": "removes a context"}, "secret": {"rm": "removes a secret"},
        "config": {"rm": "removes a config"}, "stack": {"rm": "removes a stack"},
        "service": {"rm": "removes a service"}, "node": {"rm": "removes a node"},
        "swarm": {"leave": "leaves the swarm"}, "plugin": {"rm": "removes a plugin"},
        "manifest": {"rm": "removes a manifest"}, "pod": {"rm": "removes a pod"},
        "machine": {"rm": "removes a machine", "reset": "removes all of it"},
        "compose": sub(
            {
                "down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
                "rm": "removes containers", "kill": STOPS,
            },
            "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
        ),
    },
    "-H", "--host", "-c", "--context", "--config", "-l", "--log-level",
)  # fmt: skip
_COMPOSE: Final = sub(
    {"down": flag("-v", "--volumes", "--rmi", why="removes volumes or images"),
     "rm": "removes containers", "kill": STOPS},
    "-f", "--file", "-p", "--project-name", "--env-file", "--profile",
)  # fmt: skip
_KUBECTL: Final = sub(
    {
        "delete": "removes things from the cluster", "drain": "empties a node",
        "replace": flag("--force", why="removes things and creates them anew"),
        "apply": flag("--prune", "--force", why="removes things from the cluster"),
        "scale": lambda call: STOPS if call.value("--replicas") == "0" else None,
        "rollout": {"undo": "takes a rollout back"},
        "cordon": "takes a node out of service",
    },
    "-n", "--namespace", "--context", "--kubeconfig", "-s", "--server", "--cluster", "--user",
)  # fmt: skip
_TERRAFORM: Final = any_of(
    sub(
        {
            "destroy": "removes the infrastructure",
            "apply": flag(
                "-auto-approve", "--auto-approve", "-destroy", "--destroy",
                why="changes the infrastructure unasked",
            ),
            "state": {"rm": "forgets infrastructure", "push": "replaces the state"},
            "workspace": {"delete": "removes a workspace"},
            "taint": "marks something to be replaced", "force-unlock": "takes a lock away",
        }
    ),
)  # fmt: skip
_APT: Final = verbs(
    "remove", "purge", "autoremove", "autopurge", "dist-upgrade", "full-upgrade", why=PACKAGES
)
_DNF: Final = verbs("rm", "remove", "erase", "autoremove", "swap", why=PACKAGES)
_BREW: Final = verbs("uninstall", "remove", "rm", "autoremove", "untap", "zap", why=PACKAGES)
_NODE: Final = verbs(
    "publish", "unpublish", "deprecate", why=PUBLISHES, otherwise=verbs(
        "uninstall", "remove", "rm", "un", "unlink", "r", "prune", why=PACKAGES
    ),
)  # fmt: skip
_PIP: Final = verbs("uninstall", why=PACKAGES)

RULES: Final[dict[str, Rule]] = {
    **words(_DOCKER, "docker podman nerdctl"),
    **words(_COMPOSE, "docker-compose podman-compose"),
    **words(_KUBECTL, "kubectl oc k3s k"),
    "helm": verbs("uninstall", "delete", "del", "un", "rollback", why="removes a release"),
    **words(_TERRAFORM, "terraform tofu terragrunt"),
    "pulumi": verbs("destroy", "cancel", "rm", why="removes the infrastructure", depth=2),
    "cdk": verbs("destroy", why="removes the infrastructure"),
    "vagrant": verbs("destroy", "halt", why="removes machines"),
    "virsh": verbs("destroy", "undefine", "shutdown", "vol-delete", why="removes machines"),
    "aws": _aws,
    **words(_cloud, "gcloud az doctl ibmcloud oci linode-cli hcloud scw gsutil bq eksctl"),
    "heroku": _heroku,
    **words(verbs("rm", "rb", "mv", "del", "delete", "remove", why=CLOUD, depth=3),
            "gsutil s3cmd mc"),
    "rclone": verbs(
        "delete", "purge", "sync", "move", "deletefile", "rmdirs", "moveto", "cleanup", "bisync",
        why="removes or replaces files",
    ),
    "gh": any_of(verbs("delete", "archive", why="removes something on GitHub", depth=2),
                 files.request),
    **words(_NODE, "npm yarn pnpm bun"),
    "cargo": verbs("publish", "yank", why=PUBLISHES),
    "gem": verbs("push", "yank", why=PUBLISHES, otherwise=verbs("uninstall", why=PACKAGES)),
    "twine": verbs("upload", why=PUBLISHES),
    "poetry": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", why=PACKAGES)),
    "uv": verbs("publish", why=PUBLISHES, otherwise=verbs("remove", "uninstall", why=PACKAGES,
                                                         depth=2)),
    **words(_PIP, "pip pip3 pipx pipenv easy_install"),
    **words(verbs("uninstall", "remove", "clean", why=PACKAGES), "conda mamba micromamba"),
    **words(_APT, "apt apt-get aptitude"),
    "dpkg": flag("-r", "-P", "--remove", "--purge", why=PACKAGES),
    "rpm": flag("-e", "--erase", why=PACKAGES),
    **words(_DNF, "yum dnf microdnf zypper"),
    "pacman": first("-R", "--remove", why=PACKAGES),
    "apk": verbs("del", why=PACKAGES),
    **words(_BREW, "brew port"),
    **words(verbs("remove", "purge", "uninstall", why=PACKAGES), "snap flatpak"),
    **words(always("removes a database"), "dropdb dropuser pg_dropcluster"),
    **words(_sql, "psql mysql mariadb sqlite3 sqlite duckdb clickhouse-client cqlsh sqlcmd mongo"
                  " mongosh isql sqlplus cockroach"),
    "mysqladmin": verbs("drop", "shutdown", "kill", why="removes a database", depth=4),
    **words(_redis, "redis-cli valkey-cli keydb-cli"),
    "pg_restore": flag("-c", "--clean", why="removes data in a database"),
    "mongorestore": flag("--drop", why="removes data in a database"),
    "wsl": flag("--unregister", why="removes a system"),
    "tmutil": first("delete", "disable", why="removes backups"),
    "restic": verbs("forget", "prune", why="removes backups", depth=4),
    "borg": verbs("delete", "prune", "compact", why="removes backups", depth=2),
    "ansible": flag("-m", "-a", why="runs a command on other machines"),
    "security": first("delete", why="removes keys"),
    "gpg": flag(
        "--delete-keys", "--delete-secret-keys", "--delete-secret-and-public-key",
        why="removes keys",
    ),
}  # fmt: skip
