package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
)

func note(n int) journal.Entry {
	return journal.Entry{Time: time.Unix(int64(n), 0).UTC(), Scope: "ib0", Kind: journal.KindNote, Text: fmt.Sprint(n)}
}

// collect returns a function that collects the texts of entries, and the slice of these.
func collect() (into *[]string, each func(journal.Entry) error) {
	var texts []string
	return &texts, func(e journal.Entry) error {
		texts = append(texts, e.Text)
		return nil
	}
}

func TestR29EventsAreThoseOfTheJournal(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	for n := range 5 {
		f.log.Add(note(n))
	}
	for _, c := range []struct {
		since uint64
		want  []string
	}{{0, []string{"0", "1", "2", "3", "4"}}, {3, []string{"3", "4"}}, {5, nil}, {9, nil}} {
		got, each := collect()
		if err := GetEvents(t.Context(), path, c.since, false, each); err != nil || !reflect.DeepEqual(*got, c.want) {
			t.Errorf("since %d: %q, %v, want %q", c.since, *got, err, c.want)
		}
	}
}

func TestR29EventsKeepTheirDurations(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	want := journal.Entry{
		Seq: 1, Time: time.Unix(1e9, 5).UTC(), Scope: "soft", Kind: journal.KindRecovered, Rung: "reset_device",
		Reason: "device_error", Text: "x", Duration: 123456789, Outage: journal.Seconds(3 * time.Second),
	}
	f.log.Add(want)
	err := GetEvents(t.Context(), path, 0, false, func(got journal.Entry) error {
		if got != want {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A follower gets the present entries, then new ones, until the daemon ends.
func TestR29FollowGoesOnUntilTheDaemonEnds(t *testing.T) {
	f := newFake()
	path, stop := start(t, f)
	defer stop()
	const entries = 3 * journal.Size
	f.log.Add(note(0))
	next := 0
	ended := make(chan error, 1)
	got := make(chan struct{}, entries)
	go func() {
		ended <- GetEvents(context.Background(), path, 0, true, func(e journal.Entry) error {
			if e.Text != fmt.Sprint(next) {
				return fmt.Errorf("entry %s, want %d", e.Text, next)
			}
			next++
			got <- struct{}{}
			return nil
		})
	}()
	for n := 1; n < entries; n++ { // never more ahead of the follower than the journal keeps
		select {
		case <-got:
		case err := <-ended:
			t.Fatal(err)
		}
		f.log.Add(note(n))
	}
	<-got
	began := time.Now()
	stop()
	if err := <-ended; err != nil || next != entries {
		t.Errorf("%d of %d entries, %v", next, entries, err)
	}
	t.Logf("the daemon's end took %s", time.Since(began))
}

func TestFollowerMayLeave(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	f.log.Add(note(0))
	enough := errors.New("enough")
	if err := GetEvents(t.Context(), path, 0, true, func(journal.Entry) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("by its own error: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	err := GetEvents(ctx, path, 0, true, func(journal.Entry) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("by its context: %v", err)
	}
}

// The number of followers is limited. One that leaves makes room for another, and followers do
// not take the places of orders.
func TestFollowersAreBounded(t *testing.T) {
	path := serve(t, newFake())
	var there []*http.Response
	for range maxFollowers {
		resp, err := do(t.Context(), limit, path, http.MethodGet, "/v1/events?follow=true", http.NoBody, nil)
		if err != nil {
			t.Fatal(err)
		}
		there = append(there, resp)
	}
	if code, text := raw(t, path, "GET", "/v1/events?follow=true", ""); code != http.StatusServiceUnavailable {
		t.Errorf("one more: %d %q", code, text)
	}
	if err := Post(t.Context(), path, &ResumeRequest{}); err != nil {
		t.Errorf("an order beside them: %v", err)
	}
	there[0].Body.Close()
	eventually(t, "a place is free", func() bool {
		resp, err := do(t.Context(), limit, path, http.MethodGet, "/v1/events?follow=true", http.NoBody, nil)
		if err == nil {
			there = append(there, resp)
		}
		return err == nil
	})
	for _, resp := range there {
		resp.Body.Close()
	}
}
