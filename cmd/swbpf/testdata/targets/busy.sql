-- Functions that each call only what they call here, for some two seconds.
create function adds(n int) returns numeric language plpgsql as $$
declare
  sum numeric := 0;
begin
  for i in 1..n loop
    sum := sum + sqrt(i::numeric);
  end loop;
  return sum;
end $$;

create function joins(n int) returns text language plpgsql as $$
declare
  text text := '';
begin
  for i in 1..n loop
    text := left(text || i, 1000);
  end loop;
  return text;
end $$;

create function does_both(n int) returns text language sql as $$ select max(adds(n) || joins(n)) from generate_series(1, 5) $$;

create function recurses(depth int) returns text language plpgsql as $$
begin
  if depth > 0 then
    return recurses(depth - 1);
  end if;
  return does_both(300);
end $$;

do $$
begin
  while clock_timestamp() < now() + interval '2 s' loop
    perform recurses(2);
  end loop;
end $$;

