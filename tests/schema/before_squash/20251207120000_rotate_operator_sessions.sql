-- The console's sessions: each has a name one may say, and a cookie that changes while it lives.

alter table pabal.operator_sessions add column if not exists id uuid not null default pabal.uuid7();
comment on column pabal.operator_sessions.id is 'The session''s id, which may be shown: it opens nothing.';

alter table pabal.operator_sessions add column if not exists previous_hash bytea;
comment on column pabal.operator_sessions.previous_hash is 'SHA-256 of the cookie before: good for a moment longer, and a sign of theft after that.';

alter table pabal.operator_sessions add column if not exists rotated_at timestamptz not null default pabal.now();
comment on column pabal.operator_sessions.rotated_at is 'Since when the cookie is the one it is.';

alter table pabal.operator_sessions
  add column if not exists seed bytea not null default uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid());
comment on column pabal.operator_sessions.seed is 'What the next cookie is made from, together with the one before: whoever asks twice gets the same. It is never told.';

alter table pabal.operator_sessions drop constraint if exists session_previous_is_hashed;
alter table pabal.operator_sessions
  add constraint session_previous_is_hashed check (octet_length(previous_hash) = 32 and previous_hash <> token_hash);

create unique index if not exists idx_operator_sessions_id on pabal.operator_sessions (id);
create unique index if not exists idx_operator_sessions_previous_hash on pabal.operator_sessions (previous_hash)
  where previous_hash is not null;
