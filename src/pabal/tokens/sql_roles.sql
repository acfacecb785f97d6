-- name: insert_sql_role
insert into pabal.service_sql_roles (service_name, role_name)
values (:service, :role)
on conflict do nothing;

-- name: delete_sql_role
delete from pabal.service_sql_roles where service_name = :service and role_name = :role;

-- name: list_sql_roles
select service_name as service, role_name as role, created_at,
       exists (select from pg_catalog.pg_roles r where r.rolname = role_name) as role_exists
from pabal.service_sql_roles
where :service::text is null or service_name = :service
order by service_name, role_name;

-- name: database_role_exists
select exists (select from pg_catalog.pg_roles where rolname = :role::text);
