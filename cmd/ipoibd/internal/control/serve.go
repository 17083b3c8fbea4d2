package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/hca"
)

// ServeHTTP implements http.Handler. It serves only root and the daemon's own user.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c, ok := r.Context().Value(clientKey{}).(client); !ok || !allowed(c.uid, os.Geteuid()) {
		reply(w, http.StatusForbidden, refusal{"only root and the user the daemon runs as may use this socket"})
		return
	}
	var method string
	var handle func()
	switch r.URL.Path {
	case "/v1/status":
		method, handle = http.MethodGet, func() { reply(w, http.StatusOK, s.daemon.Status()) }
	case "/livez", "/readyz", "/metrics":
		method, handle = http.MethodGet, func() { s.views.ServeHTTP(w, r) }
	case "/v1/events":
		method, handle = http.MethodGet, func() { s.events(w, r) }
	case "/v1/hand-over":
		method, handle = http.MethodPost, func() { s.handOver(w, r) }
	case "/v1/capture":
		method, handle = http.MethodPost, func() { s.capture(w, r) }
	default:
		for _, newRequest := range requests {
			if q := newRequest(); q.url() == r.URL.Path {
				method, handle = http.MethodPost, func() { s.order(w, r, q) }
			}
		}
	}
	switch {
	case handle == nil:
		refuse(w, fmt.Errorf("%w: %s", ErrNotFound, r.URL.Path))
	case r.Method != method:
		w.Header().Set("Allow", method)
		reply(w, http.StatusMethodNotAllowed, refusal{fmt.Sprintf("%s requires %s", r.URL.Path, method)})
	case method == http.MethodGet && r.ContentLength != 0:
		refuse(w, fmt.Errorf("%w: %s takes no body", ErrInvalid, r.URL.Path))
	default:
		handle()
	}
}

// order reads a request into q and carries it out, unless too many are in progress.
func (s *Server) order(w http.ResponseWriter, r *http.Request, q Request) {
	var carryOut order
	err := decodeRequest(http.MaxBytesReader(w, r.Body, maxBody), q)
	if err == nil {
		carryOut, err = q.order(s.daemon)
	}
	if err == nil {
		err = admit(s.orders, "orders")
	}
	if err != nil {
		refuse(w, err)
		return
	}
	defer func() { <-s.orders }()
	s.keep(r)
	if add, ok := q.(*AddRequest); ok {
		add.Namespace = descriptorOf(r)
		defer add.Namespace.Close()
	}
	if err := carryOut(r.Context()); err != nil {
		refuse(w, err)
		return
	}
	reply(w, http.StatusOK, q)
}

// admit takes a place if one is free, and refuses otherwise.
func admit(places chan struct{}, who string) error {
	select {
	case places <- struct{}{}:
		return nil
	default:
		return fmt.Errorf("%w: too many %s; the limit is %d", ErrUnavailable, who, cap(places))
	}
}

// decodeRequest reads one JSON object without unknown fields. An empty body is an empty
// object.
func decodeRequest(body io.Reader, into any) error {
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	switch _, err := dec.Token(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return fmt.Errorf("%w: more than one JSON value", ErrInvalid)
}

// reply gives the client conns.Timeout to read the answer. It does not indent: an answer with
// thousands of peers would need twice the memory.
func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(conns.Timeout))
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}

type refusal struct {
	Error string `json:"error"`
}

func refuse(w http.ResponseWriter, err error) { reply(w, statusOf(err), refusal{err.Error()}) }

type status struct {
	err  error
	code int
}

// statuses maps refusals to HTTP statuses.
var statuses = []status{
	{ErrInvalid, http.StatusBadRequest},
	{hca.ErrInvalid, http.StatusBadRequest},
	{ErrNotAllowed, http.StatusForbidden},
	{ErrNotFound, http.StatusNotFound},
	{ErrMistake, http.StatusUnprocessableEntity},
	{ErrUnavailable, http.StatusServiceUnavailable},
	{context.Canceled, http.StatusServiceUnavailable},
	{context.DeadlineExceeded, http.StatusServiceUnavailable},
}

// statusOf checks first for the size limit of a body, whose error is wrapped in ErrInvalid.
func statusOf(err error) int {
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return http.StatusRequestEntityTooLarge
	}
	for _, s := range statuses {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	return http.StatusConflict
}
