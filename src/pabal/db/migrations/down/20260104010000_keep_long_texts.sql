drop function if exists pabal.waits_for_beginning(uuid, uuid, integer);
drop function if exists pabal.keep_rest_of_text(uuid, uuid, text, timestamptz, interval, timestamptz, text);
