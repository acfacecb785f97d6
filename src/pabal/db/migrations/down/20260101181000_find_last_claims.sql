drop function if exists pabal.last_event_claim(text);
