-- name: database_uses_keys
-- Whether anything in this database was made with keys: a hub that lost them must not make others in silence.
select exists (select from public.service_tokens) or exists (select from pabal.audit_seals)
    or exists (select from pabal.subscriptions where secret is not null);
