-- rounded returns a span rounded up to 26 significant bits, as withSpan in pkg/limiter/span.go does.
local function rounded(span)
  if span < 67108864 then return span end
  local _, digits = math.frexp(span)
  local unit = 2 ^ (digits - 26)
  return ceil(span / unit) * unit
end

-- funnel_state returns the state of a funnel that has a level above 0 at a time; see funnel.lua.
local function funnel_state(at, level, leak, tick)
  local part = fmod(level, leak)
  local span = (level - part) / leak * tick
  local empty = at + span
  if span >= 67108864 then span = rounded(span) end
  if part == 0 then return pack('>dd', empty, span) end
  return pack('>ddd', empty, span, part)
end
