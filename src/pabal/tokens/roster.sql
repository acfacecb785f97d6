-- name: list_service_summaries
-- Each number along an index of its own and no further than it is shown. That a service got a token is in the audit log,
-- whose rows outlast the tokens; what else there is about a service is rare among them. Both columns of the subject's index
-- are compared and ordered by together, or the planner would read the whole log backwards for a service that has no row.
select s.name, s.description, s.permissions, s.is_active, s.disabled_at, s.created_at, pabal.now() as now,
       (
           select count(*)
           from public.service_secrets k
           where k.service_name = s.name and k.revoked_at is null and (k.expires_at is null or k.expires_at > pabal.now())
       ) as live_secret_count,
       (
           select count(*)
           from (
               select
               from public.token_families f
               where f.service_name = s.name and f.revoked_at is null and f.expires_at > pabal.now()
               limit :many
           ) live
       ) as live_family_count,
       (
           select l.at
           from pabal.audit_log l
           where l.subject is not null
             and (l.subject, l.id) >= (s.name, 0)
             and (l.subject, l.id) <= (s.name, 9223372036854775807)
             and l.action in ('token.issued', 'token.refreshed')
           order by l.subject desc, l.id desc
           limit 1
       ) as last_token_at
from public.services s
where s.name > :after
order by s.name
limit :limit;
