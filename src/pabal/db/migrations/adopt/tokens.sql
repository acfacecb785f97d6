-- How rows of the specification's tables become rows of Pabal's. `existing` stands for the schema the old table is in.
-- A rule counts the rows it changes, a conflict the rows that no rule covers; the comment of each is what is reported.

-- name: conflict_service_names
-- Service names are lower case letters, digits and underscores.
select count(*), min(t.service_name) from existing.service_tokens t where t.service_name !~ '^[a-z][a-z0-9_]{1,62}$';

-- name: rule_unknown_services
-- Services of tokens that Pabal does not know are registered, with permission to read.
select count(distinct t.service_name)
from existing.service_tokens t
where t.service_name not in ('hub', 'minu_find', 'minu_frame', 'minu_build', 'minu_keep');

-- name: rule_other_issuer
-- Tokens of another issuer are kept as revoked history: Pabal can neither verify nor decrypt them. Their text gets the prefix adopted:.
select (select count(*) from existing.service_tokens t) + (select count(*) from existing.refresh_tokens t);

-- name: rule_unknown_permissions
-- Permissions that Pabal does not know are removed from tokens.
select count(*)
from existing.service_tokens t
where jsonb_typeof(t.permissions) <> 'array' or not t.permissions <@ '[
  "read", "write", "events:publish", "events:consume", "events:read", "notifications:send", "notifications:read",
  "people:token", "people:write", "tokens:introspect", "tokens:admin", "hub:events", "hub:admin",
  "hub:manage"
]'::jsonb;

-- name: rule_duplicate_access_hashes
-- Of access tokens with the same hash, the newest keeps it; the others get their id appended.
select count(*) - count(distinct t.token_hash) from existing.service_tokens t;

-- name: rule_duplicate_refresh_hashes
-- Of refresh tokens with the same hash, the newest keeps it; the others get their id appended.
select count(*) - count(distinct t.token_hash) from existing.refresh_tokens t;

-- name: rule_refresh_expiry
-- A refresh token that never expires, or expires before it was created, expires seven days after it was created.
select count(*) from existing.refresh_tokens t where t.expires_at is null or t.expires_at <= t.created_at;

-- name: copy_services
insert into public.services (name, description)
select distinct t.service_name, 'Adopted'
from existing.service_tokens t
where not exists (select from public.services s where s.name = t.service_name);

-- name: copy_families
-- One family for each access token, with its id.
insert into public.token_families (id, service_name, created_at, expires_at, revoked_at, revoked_reason, permissions)
select t.id, t.service_name, t.created_at, t.expires_at, coalesce(t.revoked_at, pabal.now()),
       coalesce(t.revoked_reason, 'Adopted from another issuer'), '[]'
from existing.service_tokens t;

-- name: copy_service_tokens
insert into public.service_tokens (
  id, service_name, access_token, token_hash, permissions, expires_at, is_revoked, revoked_at, revoked_reason,
  issued_by, client_ip, user_agent, created_at, updated_at, family_id, issued_by_actor
)
select t.id, t.service_name, 'adopted:' || t.access_token,
       case when row_number() over (partition by t.token_hash order by t.created_at desc, t.id) = 1 then t.token_hash
            else t.token_hash || ':' || t.id end,
       coalesce((
         select jsonb_agg(p.name order by p.position)
         from jsonb_array_elements(case jsonb_typeof(t.permissions) when 'array' then t.permissions else '[]' end)
           with ordinality as p (name, position)
         where pabal.known_permissions(jsonb_build_array(p.name))
       ), '[]'),
       t.expires_at, true, coalesce(t.revoked_at, pabal.now()), coalesce(t.revoked_reason, 'Adopted from another issuer'),
       t.issued_by, t.client_ip, t.user_agent, t.created_at, t.updated_at, t.id, 'adopted'
from existing.service_tokens t;

-- name: copy_refresh_tokens
insert into public.refresh_tokens (
  id, service_token_id, refresh_token, token_hash, expires_at, revoked_at, revoked_reason, last_used_at, use_count,
  replaced_by, created_at, updated_at, family_id
)
select t.id, t.service_token_id, 'adopted:' || t.refresh_token,
       case when row_number() over (partition by t.token_hash order by t.created_at desc, t.id) = 1 then t.token_hash
            else t.token_hash || ':' || t.id end,
       case when t.expires_at > t.created_at then t.expires_at else t.created_at + interval '7 days' end,
       coalesce(t.revoked_at, pabal.now()), coalesce(t.revoked_reason, 'Adopted from another issuer'), t.last_used_at,
       t.use_count, t.replaced_by, t.created_at, t.updated_at, t.service_token_id
from existing.refresh_tokens t;
