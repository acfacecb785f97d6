-- Texts that were encrypted stay so, and nothing reads them any more: refuse as long as there are any.
do $$
begin
  if exists (select from public.inbound_messages where kakao_payload ? 'envelope')
     or exists (select from public.relay_replies where response ? 'envelope' or response -> 'template' -> 'outputs' -> 0 ? 'envelope') then
    raise exception 'messages are stored encrypted: turn PABAL_RELAY_ENCRYPT_TEXT off and wait until they are purged, or erase them';
  end if;
end
$$;

drop table if exists pabal.relay_keys;

comment on column public.relay_replies.response_hash is 'SHA-256 of the response as the agent sent it; NULL for texts of the hub.';
