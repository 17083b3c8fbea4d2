package control

import (
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
)

// ErrNotRunning says that no daemon answers on the socket.
var ErrNotRunning = errors.New("no daemon answers; is 'ipoibd run' running, with the same --control?")

const (
	askTimeout = 10 * time.Second // above what the daemon grants its interfaces
	maxReply   = 64 << 20
)

// GetStatus asks the daemon behind the socket.
func GetStatus(ctx context.Context, path string) (*Status, error) {
	var s Status
	if err := get(ctx, path, "/v1/status", &s); err != nil {
		return nil, err
	}
	return &s, nil
}

func get(ctx context.Context, path, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ipoibd"+url, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true,
	}}
	resp, err := client.Do(req)
	if err != nil {
		return dialError(path, err)
	}
	defer resp.Body.Close()
	return decode(resp, into)
}

func decode(resp *http.Response, into any) error {
	body := json.NewDecoder(io.LimitReader(resp.Body, maxReply))
	if resp.StatusCode == http.StatusOK {
		return body.Decode(into)
	}
	var r refusal
	if err := body.Decode(&r); err != nil || r.Error == "" {
		return fmt.Errorf("control socket: %s", resp.Status)
	}
	return fmt.Errorf("refused: %s", r.Error)
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
