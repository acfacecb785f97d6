delete from public.relay_control_events where kind in ('parked', 'activated');
alter table public.relay_control_events drop constraint if exists relay_control_event_kind;
alter table public.relay_control_events add constraint relay_control_event_kind
  check (kind in ('paired', 'unpaired', 'disabled', 'revoked'));
comment on column public.relay_control_events.kind is 'paired, unpaired, disabled (the account) or revoked (a token of it).';

alter table public.relay_streams drop column if exists parked_at;
