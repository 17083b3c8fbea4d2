package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
)

// events answers with the journal's entries after number since, one JSON object per line.
// With follow it continues with new entries until the client or the daemon ends, or the client
// does not read for writeTimeout. A follower that is too slow misses entries, which shows as
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
	out := stream{w: w, at: http.NewResponseController(w)}
	if !follow {
		_ = out.send(s.daemon.Journal().Since(since)) // the client is gone
		return
	}
	defer func() { <-s.followers }()
	keep(r)
	out.follow(r.Context(), s.daemon.Journal(), since)
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

// stream sends entries, each batch within writeTimeout.
type stream struct {
	w  http.ResponseWriter
	at *http.ResponseController
}

// follow starts with an empty batch, so that the client gets the header at once.
func (s stream) follow(ctx context.Context, j *journal.Journal, seq uint64) {
	var entries []journal.Entry
	for err := s.send(nil); err == nil; err = s.send(entries) {
		if entries, err = j.Wait(ctx, seq); err != nil {
			return
		}
		seq = entries[len(entries)-1].Seq
	}
}

func (s stream) send(entries []journal.Entry) error {
	if err := s.at.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	enc := json.NewEncoder(s.w)
	for _, e := range entries {
		if err := enc.Encode(e); err != nil {
			return err
		}
	}
	return s.at.Flush()
}
