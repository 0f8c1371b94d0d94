-- rounded is a span rounded up to 26 binary digits, as Go keeps it: see funnel.lua.
local function rounded(span)
  if span < 67108864 then return span end
  local _, digits = math.frexp(span)
  local unit = 2 ^ (digits - 26)
  return ceil(span / unit) * unit
end

-- funnel_state is the state of a level above 0 at a time.
local function funnel_state(at, level, leak, tick)
  local part = fmod(level, leak)
  local span = (level - part) / leak * tick
  local empty = at + span
  if span >= 67108864 then span = rounded(span) end
  if part == 0 then return pack('>dd', empty, span) end
  return pack('>ddd', empty, span, part)
end
