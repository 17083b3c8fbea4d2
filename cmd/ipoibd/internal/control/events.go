package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/journal"
)

// events answers with the journal's entries after number since, one JSON object per line.
// With follow it continues with new entries until the client or the daemon exits, or the client
// does not read for conns.Timeout. A follower that is too slow misses entries, which shows as
// gaps in their numbers.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	since, follow, err := eventsQuery(r.URL.Query())
	if err == nil && follow {
		err = admit(s.followers, "followers")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	log := s.daemon.Journal
	if !follow {
		_ = sendEntries(w, log.Since(since)) // the client is gone
		return
	}
	defer func() { <-s.followers }()
	s.keep(r)
	var entries []journal.Entry // the first batch is empty, so that the client gets the header at once
	for sendEntries(w, entries) == nil {
		if entries, err = log.Wait(r.Context(), since); err != nil {
			return
		}
		since = entries[len(entries)-1].Seq
	}
}

func eventsQuery(q url.Values) (since uint64, follow bool, err error) {
	for name, values := range q {
		switch name {
		case "since":
			since, err = strconv.ParseUint(values[0], 10, 64)
		case "follow":
			follow, err = strconv.ParseBool(values[0])
		default:
			err = errors.New("no such parameter")
		}
		if err != nil {
			return 0, false, fmt.Errorf("%w: %s: %w", ErrInvalid, name, err)
		}
	}
	return since, follow, nil
}

// sendEntries gives the client conns.Timeout to read the entries.
func sendEntries(w http.ResponseWriter, entries []journal.Entry) error {
	out := http.NewResponseController(w)
	if err := out.SetWriteDeadline(time.Now().Add(conns.Timeout)); err != nil {
		return err
	}
	enc := json.NewEncoder(w)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return out.Flush()
}
