drop trigger if exists conversation_mappings_unpaired on public.conversation_mappings;
drop function if exists pabal.set_unpaired_at();
alter table public.conversation_mappings drop column if exists unpaired_at;
