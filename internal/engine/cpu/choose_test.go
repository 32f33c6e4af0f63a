package cpu

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// A library that hangs is given up, and one that answers is believed, whatever it says.
func TestAskGivesUp(t *testing.T) {
	hang := make(chan struct{})
	done := make(chan struct{})
	_, err := ask(time.Millisecond, "opens devices", func() (string, error) {
		<-hang
		close(done)
		return "late", nil
	})
	if err == nil || !strings.Contains(err.Error(), "its library did not answer within 1ms: it hangs while it opens devices") {
		t.Error(err)
	}
	close(hang)
	<-done
	broken := errors.New("broken")
	if text, err := ask(time.Hour, "", func() (string, error) { return "two NICs", broken }); text != "two NICs" || !errors.Is(err, broken) {
		t.Errorf("%q, %v", text, err)
	}
}
