-- Without policies only the owner may use a table: the grants are revoked, and what was revoked is not granted again.
do $$
declare
  name text;
begin
  foreach name in array array['dead_letter_queue', 'event_queue', 'refresh_tokens', 'service_tokens', 'token_families'] loop
    execute format('drop policy if exists %I on public.%I', name || '_service_role_all', name);
    execute format('revoke all on table public.%I from service_role, authenticated', name);
  end loop;
end
$$;
drop policy if exists "dead_letter_queue_admin_select" on public.dead_letter_queue;
alter table public.dead_letter_queue disable row level security;
alter table public.event_queue disable row level security;
alter table public.refresh_tokens disable row level security;
alter table public.service_tokens disable row level security;
alter table public.token_families disable row level security;
