drop table if exists pabal.pulse;
