drop function if exists pabal.has_limit(text);
drop function if exists pabal.delete_limits_of(text[]);
drop function if exists pabal.limits_of(text[]);
drop function if exists pabal.take_limit(text, interval, interval, integer);
drop table if exists pabal.limits;
