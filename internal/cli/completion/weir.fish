# Completion of weir for fish: weir completion fish | source
function __weir_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l command $words[1]
    set -e words[1]
    for line in ($command __complete $words "$current" 2>/dev/null)
        if test "$line" = :files
            set -l flag (string match -r '^--[^=]*=' -- $current)
            for path in (__fish_complete_path (string replace -r '^--[^=]*=' '' -- $current))
                printf '%s\n' "$flag$path"
            end
        else
            printf '%s\n' $line
        end
    end
end
complete -c weir -f -a '(__weir_complete)'
