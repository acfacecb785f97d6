-- One token is one client: its newest stream is active, older ones are parked until they close.

alter table public.relay_streams add column if not exists parked_at timestamptz;
comment on column public.relay_streams.parked_at is 'When a newer stream of its token took over; NULL while it gets the messages.';

alter table public.relay_control_events drop constraint if exists relay_control_event_kind;
alter table public.relay_control_events add constraint relay_control_event_kind
  check (kind in ('paired', 'unpaired', 'disabled', 'revoked', 'parked', 'activated'));
comment on column public.relay_control_events.kind is 'paired, unpaired, disabled (the account), revoked (a token of it), parked or activated (streams of a token).';
