-- funnel_state is the state of a level above 0 at a time. A span is rounded up to 26 binary digits, as Go keeps it.
local function funnel_state(at, level, leak, tick)
  local part = fmod(level, leak)
  local span = (level - part) / leak * tick
  local empty = at + span
  if span >= 67108864 then
    local _, digits = math.frexp(span)
    local unit = 2 ^ (digits - 26)
    span = ceil(span / unit) * unit
  end
  if part == 0 then return string.format('%.0f.0%.0f', empty, span) end
  if span == 0 then return string.format('%.0f %.0f', empty, part) end
  return string.format('%.0f.0%.0f %.0f', empty, span, part)
end
