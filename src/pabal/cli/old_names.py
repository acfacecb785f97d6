"""Command names of 0.1 that still work but are hidden: `dead`, `admin`, `keys`, `pair` and `notify`."""

import cyclopts

ALIASES = {
    "dead": {
        "list": "events.dead_letter:dead_letter_list",
        "groups": "events.dead_letter:dead_letter_groups",
        "show": "events.dead_letter:dead_letter_show",
        "replay": "events.dead_letter_replay:dead_letter_replay",
        "resolve": "events.dead_letter:dead_letter_resolve",
    },
    "admin": {
        "add": "access.operator:operator_add",
        "passwd": "access.operator:operator_set_password",
        "role": "access.operator:operator_set_role",
        "list": "access.operator:operator_list",
        "disable": "access.operator:operator_disable",
        "enable": "access.operator:operator_enable",
    },
    "keys": {
        "list": "access.key:key_list",
        "make": "access.key:key_generate",
        "rotate": "access.key:key_rotate",
        "rewrap": "access.key:key_rewrap",
        "retire": "access.key:key_retire",
    },
    "pair": {
        "code": "relay.pairing:pairing_add",
        "list": "relay.conversation:conversation_list",
        "unpair": "relay.conversation:conversation_unpair",
        "block": "relay.conversation:conversation_block",
        "unblock": "relay.conversation:conversation_unblock",
        "approve": "relay.conversation:conversation_approve",
        "deny": "relay.conversation:conversation_deny",
    },
    "notify": {
        "send": "notifications.notification_send:notification_send",
        "list": "notifications.notification:notification_list",
        "show": "notifications.notification:notification_show",
        "explain": "notifications.notification:notification_explain",
        "cancel": "notifications.notification:notification_cancel",
        "again": "notifications.notification:notification_resend",
        "heal": "notifications.address:address_enable",
        "preview": "notifications.template:template_preview",
        "check": "notifications.template:template_check",
        "prefs": "notifications.person:person_preferences",
        "export": "notifications.person:person_export",
        "erase": "notifications.person:person_erase",
    },
}
RULE_ALIASES = {
    "list": "notifications.rule:rule_list",
    "show": "notifications.rule:rule_show",
    "add": "notifications.rule:rule_add",
    "change": "notifications.rule:rule_set",
    "remove": "notifications.rule:rule_remove",
}


def build_alias_app(name: str, commands: dict[str, str]) -> cyclopts.App:
    app = cyclopts.App(name=name, help="Old name, kept for one version. See `pabal --help` for the new one.")
    for verb, path in commands.items():
        app.command(f"pabal.cli.{path}", name=verb)
    return app


dead_app, admin_app, keys_app, pair_app, notify_app = (
    build_alias_app(name, commands) for name, commands in ALIASES.items()
)
notify_app.command(build_alias_app("rules", RULE_ALIASES))
