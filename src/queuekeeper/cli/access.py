"""``queuekeeper acl``: users and roles with the least that each job needs."""

from __future__ import annotations

from typing import Annotated

import typer

from queuekeeper.cli.command import Call, Plain, command, group
from queuekeeper.cli.output import Shown, copied, picked

app = group()

Job = Annotated[
    list[str] | None,
    typer.Option(
        "--job", metavar="JOB", help="Print only what this job needs. Repeat the option for more. Without it, all jobs."
    ),
]


class OnKeys(Call):
    """A call of a command that connects nowhere, and names keys."""

    takes = ("key_prefix", "as_json")


@command(app)
def redis(call: OnKeys, *, job: Job = None) -> Shown:
    """Print `ACL SETUSER` for each job.

    Nothing is sent anywhere: put passwords in, and give it to each master.

    Example: `queuekeeper acl redis --job quality --job cleanup`
    """
    from queuekeeper.access import redis_user, redis_users

    users = [redis_user(name) for name in dict.fromkeys(job)] if job else list(redis_users().values())
    found = [
        picked(user, "job", "purpose", "reads_payloads") | {"command": user.command(key_prefix=call.key_prefix)}
        for user in users
    ]
    lines = [(f"# {each['purpose']}", str(each["command"])) for each in found]
    texts = [copied(text, style=style) for line in lines for text, style in zip(line, ("dim", ""), strict=True)]
    return Shown({"users": found}, lambda: texts)


@command(app)
def postgres(
    call: Plain, *, job: Job = None, role_prefix: str | None = None, sessions_schema: str = "public"
) -> Shown | None:
    """Print a psql script with a role for each job.

    Nothing is sent anywhere: run it as a superuser, then give each role a password. It may be run again, and has to be
    after an upgrade, or when a partition policy was added.

    Example: `queuekeeper acl postgres --job quality | psql thingsboard_mqtt_broker`

    :param role_prefix: Prefix of the names of roles. [default: queuekeeper_]
    :param sessions_schema: Schema that holds TBMQ's tables.
    """
    from queuekeeper.roles import DEFAULT_PREFIX, postgres_role, postgres_roles, psql_script

    prefix = DEFAULT_PREFIX if role_prefix is None else role_prefix
    roles = [postgres_role(name) for name in dict.fromkeys(job)] if job else list(postgres_roles().values())
    found = [
        {
            "job": role.job,
            "role": f"{prefix}{role.job}",
            "purpose": role.purpose,
            "reads_payloads": role.reads_payloads,
            "statements": [
                {"about": each.place, "sql": each.sql}
                for each in role.statements(prefix=prefix, sessions_schema=sessions_schema)
            ],
        }
        for role in roles
    ]
    script = psql_script(roles, prefix=prefix, sessions_schema=sessions_schema)
    if call.as_json:
        return Shown({"roles": found}, list)
    # As it is: what a console would colour, wrap or fold is read by a program.
    typer.echo(script, nl=False)
    return None
