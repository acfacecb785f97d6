drop table if exists pabal.event_repair_positions;
