-- name: find_service_credentials
-- One row whether the service exists or not, so that both take the same way from here.
select s.name, s.permissions, s.is_active, pabal.now() as now,
       array(
           select k.secret_hash
           from public.service_secrets k
           where k.service_name = s.name and k.revoked_at is null and (k.expires_at is null or k.expires_at > pabal.now())
       ) as secret_hashes
from (values (:service::text)) as asked (name)
left join public.services s on s.name = asked.name;
