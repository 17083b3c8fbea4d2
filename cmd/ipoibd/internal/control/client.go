package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
)

// ErrNotRunning reports that no daemon answers on the socket.
var ErrNotRunning = errors.New("no daemon answers; is 'ipoibd run' running, with the same --control?")

const (
	askTimeout   = 10 * time.Second // the daemon answers status requests at once
	orderTimeout = 2 * time.Minute  // longer than the grace period of a reset
	maxReply     = 64 << 20         // bytes
)

// GetStatus returns the status of the daemon that serves the socket.
func GetStatus(ctx context.Context, path string) (*report.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var s report.Status
	if err := ask(ctx, path, http.MethodGet, "/v1/status", http.NoBody, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// GetEvents calls each for the journal's entries after number since. With follow it continues
// until ctx ends or the daemon does (nil), or until each returns an error, which it returns.
func GetEvents(ctx context.Context, path string, since uint64, follow bool, each func(journal.Entry) error) error {
	url := fmt.Sprintf("/v1/events?since=%d&follow=%t", since, follow)
	resp, err := do(ctx, path, http.MethodGet, url, http.NoBody)
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

// PostFault requests a fault, and returns the request with omitted names filled in.
func PostFault(ctx context.Context, path string, q FaultRequest) (FaultRequest, error) {
	err := post(ctx, path, "/v1/fault", &q)
	return q, err
}

// PostReset requests a reset, like PostFault.
func PostReset(ctx context.Context, path string, q ResetRequest) (ResetRequest, error) {
	err := post(ctx, path, "/v1/reset", &q)
	return q, err
}

// PostRecover requests a retry of a device that was given up, like PostFault.
func PostRecover(ctx context.Context, path string, q RecoverRequest) (RecoverRequest, error) {
	err := post(ctx, path, "/v1/recover", &q)
	return q, err
}

// PostSuspend returns when all interfaces have released their devices and these are closed.
func PostSuspend(ctx context.Context, path string) error {
	return post(ctx, path, "/v1/suspend", &bare{})
}

// PostResume undoes PostSuspend.
func PostResume(ctx context.Context, path string) error {
	return post(ctx, path, "/v1/resume", &bare{})
}

// post sends q and reads the answer into it.
func post(ctx context.Context, path, url string, q any) error {
	ctx, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	body, err := json.Marshal(q)
	if err != nil {
		return err
	}
	return ask(ctx, path, http.MethodPost, url, bytes.NewReader(body), q)
}

func ask(ctx context.Context, path, method, url string, body io.Reader, into any) error {
	resp, err := do(ctx, path, method, url, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(io.LimitReader(resp.Body, maxReply)).Decode(into)
}

// do sends a request and returns the response, or an error if the daemon refuses. The
// caller closes the response body.
func do(ctx context.Context, path, method, url string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://ipoibd"+url, body)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, dialError(path, err)
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, refused(resp)
	}
	return resp, nil
}

// refused returns the daemon's reason for a refusal.
func refused(resp *http.Response) error {
	var r refusal
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxBody)).Decode(&r); err != nil || r.Error == "" {
		return fmt.Errorf("control socket: %s", resp.Status)
	}
	return errors.New(r.Error)
}

func dialError(path string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("%s: %w", path, ErrNotRunning)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%s: only root and the user the daemon runs as may use this socket", path)
	}
	return err
}
