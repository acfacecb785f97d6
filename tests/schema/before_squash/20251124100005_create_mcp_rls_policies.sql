-- Only service_role reaches these tables; an administrator may look at dead letters.
-- The revokes are not idle: Supabase's default privileges give every new table to anon and authenticated.

alter table public.token_families enable row level security;
drop policy if exists "token_families_service_role_all" on public.token_families;
create policy "token_families_service_role_all" on public.token_families for all to service_role using (true) with check (true);
revoke all on table public.token_families from public, anon, authenticated;
grant select, insert, update, delete on table public.token_families to service_role;

alter table public.service_tokens enable row level security;
drop policy if exists "service_tokens_service_role_all" on public.service_tokens;
create policy "service_tokens_service_role_all" on public.service_tokens for all to service_role using (true) with check (true);
revoke all on table public.service_tokens from public, anon, authenticated;
grant select, insert, update, delete on table public.service_tokens to service_role;

alter table public.refresh_tokens enable row level security;
drop policy if exists "refresh_tokens_service_role_all" on public.refresh_tokens;
create policy "refresh_tokens_service_role_all" on public.refresh_tokens for all to service_role using (true) with check (true);
revoke all on table public.refresh_tokens from public, anon, authenticated;
grant select, insert, update, delete on table public.refresh_tokens to service_role;

alter table public.event_queue enable row level security;
drop policy if exists "event_queue_service_role_all" on public.event_queue;
create policy "event_queue_service_role_all" on public.event_queue for all to service_role using (true) with check (true);
revoke all on table public.event_queue from public, anon, authenticated;
revoke all on sequence public.event_queue_seq_seq from public, anon, authenticated;
grant select, insert, update, delete on table public.event_queue to service_role;

alter table public.dead_letter_queue enable row level security;
drop policy if exists "dead_letter_queue_service_role_all" on public.dead_letter_queue;
drop policy if exists "dead_letter_queue_admin_select" on public.dead_letter_queue;
create policy "dead_letter_queue_service_role_all" on public.dead_letter_queue for all to service_role using (true) with check (true);
create policy "dead_letter_queue_admin_select" on public.dead_letter_queue for select to authenticated
  using (
    exists (
      select 1 from public.profiles
      where profiles.id = auth.uid()
      and profiles.role in ('admin', 'super_admin')
    )
  );
revoke all on table public.dead_letter_queue from public, anon, authenticated;
grant select on table public.dead_letter_queue to authenticated;
grant select, insert, update, delete on table public.dead_letter_queue to service_role;
