package freeze

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestR08OldestPost(t *testing.T) {
	var p Posts
	for _, s := range []struct {
		at            int // ms
		posted, ended uint64
		want          int // ms; -1: none
	}{
		{0, 0, 0, -1},
		{50, 3, 0, 50},
		{100, 5, 0, 50},
		{150, 5, 2, 50},
		{200, 5, 3, 100}, // the fourth was there at 100 ms
		{250, 9, 5, 250},
		{300, 9, 9, -1},
		{350, 9, 9, -1},
		{400, 10, 9, 400},
	} {
		got := p.Oldest(epoch.Add(time.Duration(s.at)*time.Millisecond), s.posted, s.ended)
		want := epoch.Add(time.Duration(s.want) * time.Millisecond)
		if s.want < 0 {
			want = time.Time{}
		}
		if !got.Equal(want) {
			t.Errorf("at %d ms: %v, want %v", s.at, got, want)
		}
	}
}

// The estimate is never older than the truth, which would accuse a healthy
// device, and younger by less than one interval as long as marks suffice.
func TestR08OldestPostProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p Posts
		var posts []time.Time // of all requests
		ended, now := 0, epoch
		for range rapid.IntRange(1, 60).Draw(t, "samples") {
			for range rapid.IntRange(0, 3).Draw(t, "posts") {
				posts = append(posts, now.Add(step/2))
			}
			ended += rapid.IntRange(0, len(posts)-ended).Draw(t, "completions")
			now = now.Add(step)
			got := p.Oldest(now, uint64(len(posts)), uint64(ended))
			if got.IsZero() != (ended == len(posts)) {
				t.Fatalf("%v with %d of %d ended", got, ended, len(posts))
			}
			if !got.IsZero() && (got.Before(posts[ended]) || got.Sub(posts[ended]) > step) {
				t.Fatalf("%v, posted at %v", got, posts[ended])
			}
		}
	})
}

func TestPostsAreBounded(t *testing.T) {
	var p Posts
	for i := range 10 * maxMarks {
		p.Oldest(epoch.Add(time.Duration(i)*step), uint64(i+1), 0)
	}
	if len(p.marks) > maxMarks {
		t.Errorf("%d marks", len(p.marks))
	}
	if got := p.Oldest(epoch.Add(time.Hour), 10*maxMarks, 10*maxMarks-1); !got.Equal(epoch.Add(time.Hour)) {
		t.Errorf("%v", got)
	}
}
