# Completion of weir for bash: source <(weir completion bash)
_weir() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
        :files) compopt -o default ;;
        *) COMPREPLY+=("${line%%$'\t'*}") ;;
        esac
    done < <("${COMP_WORDS[0]}" __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _weir weir
