"""Run all checks of the doctor."""

import sys

from pabal.audit.checks import check_head_file
from pabal.core.finding import Finding
from pabal.db.embedded.checks import check_server_user
from pabal.doctor.database_checks import check_database
from pabal.doctor.settings_checks import (
    check_callback_origins,
    check_interpreter,
    check_keys,
    check_listen_address,
    check_nats_servers,
    check_trusted_proxies,
    check_unknown_variables,
    check_webhook_secret,
)
from pabal.hub import DatabaseUrls
from pabal.settings import Settings
from pabal.status import check_free_space


async def run_checks(
    settings: Settings, database_urls: DatabaseUrls | None, untrusted_proxy: str | None = None
) -> list[Finding]:
    """Run all checks; a failing check does not stop the others.

    `untrusted_proxy` is the address of a proxy that forwarded requests to this process without being trusted.
    """
    findings = [finding async for finding in check_database(settings, database_urls)]
    findings += [
        check_interpreter(sys.version_info[:3]),
        check_free_space(settings.data_dir),
        *check_keys(settings),
        check_head_file(settings.data_dir),
        check_listen_address(settings),
        check_webhook_secret(settings),
        check_callback_origins(settings),
        check_trusted_proxies(settings, untrusted_proxy),
    ]
    if settings.nats_servers:
        findings.append(await check_nats_servers(settings.nats_servers))
    if settings.uses_embedded_server and (finding := check_server_user(settings.data_dir)):
        findings.append(finding)
    findings += check_unknown_variables()
    return findings
