package kernel

import (
	"errors"
	"slices"
	"testing"
)

func TestListIsReadAgain(t *testing.T) {
	changed := errors.New("the list changed while it was read")
	for _, fails := range []int{0, 1, listTries - 1, listTries} {
		reads := 0
		list, err := List(func() ([]int, error) {
			reads++
			if reads <= fails {
				return []int{1}, changed // a part of it
			}
			return []int{1, 2}, nil
		})
		if fails == listTries {
			if list != nil || !errors.Is(err, changed) || reads != listTries {
				t.Errorf("%v, %v after %d reads", list, err, reads)
			}
		} else if err != nil || !slices.Equal(list, []int{1, 2}) || reads != fails+1 {
			t.Errorf("%d failures: %v, %v after %d reads", fails, list, err, reads)
		}
	}
}
