"""Command names of 0.1 that still work but are hidden: `dead`, `admin`, `keys`, `pair` and `notify`."""

import cyclopts

ALIASES = {
    "dead": {
        "list": "dead_letter:dead_letter_list",
        "groups": "dead_letter:dead_letter_groups",
        "show": "dead_letter:dead_letter_show",
        "replay": "dead_letter_replay:dead_letter_replay",
        "resolve": "dead_letter:dead_letter_resolve",
    },
    "admin": {
        "add": "operator:operator_add",
        "passwd": "operator:operator_set_password",
        "role": "operator:operator_set_role",
        "list": "operator:operator_list",
        "disable": "operator:operator_disable",
        "enable": "operator:operator_enable",
    },
    "keys": {
        "list": "key:key_list",
        "make": "key:key_generate",
        "rotate": "key:key_rotate",
        "rewrap": "key:key_rewrap",
        "retire": "key:key_retire",
    },
    "pair": {
        "code": "pairing:pairing_add",
        "list": "conversation:conversation_list",
        "unpair": "conversation:conversation_unpair",
        "block": "conversation:conversation_block",
        "unblock": "conversation:conversation_unblock",
        "approve": "conversation:conversation_approve",
        "deny": "conversation:conversation_deny",
    },
    "notify": {
        "send": "notification_send:notification_send",
        "list": "notification:notification_list",
        "show": "notification:notification_show",
        "explain": "notification:notification_explain",
        "cancel": "notification:notification_cancel",
        "again": "notification:notification_resend",
        "heal": "address:address_enable",
        "preview": "template:template_preview",
        "check": "template:template_check",
        "prefs": "person:person_preferences",
        "export": "person:person_export",
        "erase": "person:person_erase",
    },
}
RULE_ALIASES = {
    "list": "rule:rule_list",
    "show": "rule:rule_show",
    "add": "rule:rule_add",
    "change": "rule:rule_edit",
    "remove": "rule:rule_remove",
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
