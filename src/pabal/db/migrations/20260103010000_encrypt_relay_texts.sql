-- Data keys for the texts of the relay: one per account, and one of the hub for hashes. They are stored encrypted under the key ring.

create table if not exists pabal.relay_keys (
  id uuid primary key,
  account_id uuid unique references public.accounts (id) on delete cascade,
  data_key text not null,
  created_at timestamptz not null default pabal.now()
);
comment on table pabal.relay_keys is 'Data keys that encrypt the texts of messages. Without the key ring, they and the texts are unreadable.';
comment on column pabal.relay_keys.id is 'The account''s id; the highest id for the key of the hub, which hashes webhooks.';
comment on column pabal.relay_keys.account_id is 'The account; deleting it destroys the key. NULL for the key of the hub.';
comment on column pabal.relay_keys.data_key is 'The key, encrypted under a key of the key ring.';
comment on column pabal.relay_keys.created_at is 'When it was generated.';

alter table pabal.relay_keys enable row level security;
drop policy if exists "relay_keys_service_role_all" on pabal.relay_keys;
create policy "relay_keys_service_role_all" on pabal.relay_keys for all to service_role using (true) with check (true);
revoke all on table pabal.relay_keys from public, anon, authenticated;
grant select, insert, update, delete on table pabal.relay_keys to service_role;

comment on column public.relay_replies.response_hash is 'SHA-256 of the response as the agent sent it, or its HMAC if the response is encrypted; NULL for texts of the hub.';
