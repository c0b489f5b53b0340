
# Completes the words after the key as a command line of their own. The words of a URL or a key are split at colons.
_lockrun_command() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -[wEkuc] | --wait | --timeout | --limit | --conflict-exit-code | --lease | --kill-after | --owner | --retry | --url | \
            --sentinel | --sentinel-password | --cacert | --cert | --key | --command) ((i++)) ;;
        -*) ;;
        *) break ;;
        esac
        while [[ ${COMP_WORDS[i + 1]-} == [:=] ]]; do ((i += 2)); done
    done
    while [[ ${COMP_WORDS[i + 1]-} == [:=] ]]; do ((i += 2)); done
    if ((i >= COMP_CWORD)); then
        _lockrun "$@"
    elif declare -F _command_offset >/dev/null; then
        _command_offset $((i + 1))
    elif ((i + 1 == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
    fi
}
complete -F _lockrun_command -o bashdefault -o default lockrun
