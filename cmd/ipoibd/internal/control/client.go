package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"syscall"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

var (
	// ErrNotRunning reports that no process listens on the socket.
	ErrNotRunning = errors.New("no daemon answers; is 'ipoibd run' running, with the same --control?")
	// ErrHangs reports that the process that listens on the socket does not answer.
	ErrHangs = errors.New("not responding (stopped or hung); 'ipoibd doctor' says what to do")
	errSlow  = errors.New("the request is still in progress")
)

const (
	viewTimeout  = 5 * time.Second // the daemon answers these requests at once
	orderTimeout = 2 * time.Minute // longer than the grace period of a reset
	maxReply     = 64 << 20        // bytes
)

// GetStatus returns the status of the daemon that serves the socket.
func GetStatus(ctx context.Context, path string) (*report.Status, error) {
	var s report.Status
	if err := ask(ctx, viewTimeout, path, http.MethodGet, "/v1/status", http.NoBody, nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// GetEvents calls each for the journal's entries after number since. With follow it continues
// until ctx ends or the daemon exits (nil), or until each returns an error, which it returns.
func GetEvents(ctx context.Context, path string, since uint64, follow bool, each func(journal.Entry) error) error {
	url := fmt.Sprintf("/v1/events?since=%d&follow=%t", since, follow)
	resp, err := do(ctx, viewTimeout, path, http.MethodGet, url, http.NoBody, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var e journal.Entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if err := each(e); err != nil {
			return err
		}
	}
}

// Post sends a request, and fills in the names that it omits. A daemon may need minutes for a
// request, so Post first makes sure that it answers at all.
func Post(ctx context.Context, path string, q Request) error {
	if err := GetEvents(ctx, path, math.MaxUint64, false, nil); err != nil {
		return err
	}
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	var pass *os.File
	if add, ok := q.(*AddRequest); ok {
		pass = add.Namespace
	}
	return ask(ctx, orderTimeout, path, http.MethodPost, q.url(), bytes.NewReader(body), pass, q)
}

// ask sends a request, with a descriptor unless that is nil, and decodes the answer.
func ask(
	ctx context.Context, limit time.Duration, path, method, url string, body io.Reader, pass *os.File, into any,
) error {
	ctx, cancel := context.WithTimeout(ctx, limit) // bounds the body of the answer as well
	defer cancel()
	resp, err := do(ctx, limit, path, method, url, body, pass)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(into)
}

// do sends a request and returns the response, whose header must arrive within limit. It
// returns an error if the daemon refuses. The caller closes the response body.
func do(
	ctx context.Context, limit time.Duration, path, method, url string, body io.Reader, pass *os.File,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://ipoibd"+url, body)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
			if u, ok := c.(*net.UnixConn); ok && err == nil {
				return &sender{u, pass}, nil
			}
			return c, err
		},
		ResponseHeaderTimeout: limit,
		DisableKeepAlives:     true,
	}}
	began := time.Now()
	resp, err := client.Do(req)
	why := ErrHangs
	if method == http.MethodPost { // Post has made sure that the daemon answers
		why = errSlow
	}
	switch failed, _ := errors.AsType[net.Error](err); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%s: only root and the user the daemon runs as may use this socket", path)
	case failed != nil && failed.Timeout():
		waited := time.Since(began).Round(100 * time.Millisecond)
		return nil, fmt.Errorf("%s: the daemon has not answered within %s: %w", path, waited, why)
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusOK:
		return resp, nil
	}
	return nil, refusalOf(resp)
}

// refusalOf returns the error of a refusal.
func refusalOf(resp *http.Response) error {
	defer resp.Body.Close()
	var r refusal
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(&r); err != nil || r.Error == "" {
		return fmt.Errorf("control socket: %s", resp.Status)
	}
	return &refused{r.Error, resp.StatusCode}
}

// refused is a refusal with the daemon's text, and is the error that has its status.
type refused struct {
	text string
	code int
}

func (r *refused) Error() string { return r.text }

func (r *refused) Is(target error) bool {
	return slices.ContainsFunc(statuses, func(s status) bool { return s.err == target && s.code == r.code })
}
