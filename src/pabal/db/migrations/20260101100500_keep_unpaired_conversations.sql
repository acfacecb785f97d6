-- A conversation is kept for an hour after it was unpaired, as after its first webhook.

alter table public.conversation_mappings add column if not exists unpaired_at timestamptz;
comment on column public.conversation_mappings.unpaired_at is 'When its pairing, request or block ended; NULL if there was none.';

create or replace function pabal.set_unpaired_at() returns trigger
language plpgsql
set search_path = ''
as $$
begin
  new.unpaired_at := case when new.state = 'UNPAIRED' then pabal.now() end;
  return new;
end
$$;
comment on function pabal.set_unpaired_at() is 'Records when a conversation became unpaired.';
revoke all on function pabal.set_unpaired_at() from public, anon, authenticated;

-- Triggers fire in the order of their names: this one after conversation_mappings_settle, which may change the state.
drop trigger if exists conversation_mappings_unpaired on public.conversation_mappings;
create trigger conversation_mappings_unpaired
  before update on public.conversation_mappings
  for each row
  when (new.state <> old.state)
  execute function pabal.set_unpaired_at();
