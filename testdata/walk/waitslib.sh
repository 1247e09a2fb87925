# What waits.sh runs by source.

from_library() {
  local then=$1

  "$then"
}

[[ ${here-} ]] && waits
