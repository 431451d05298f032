"""Typed lines are classified correctly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.shell.input.classification import Classification, flip
from brim.shell.input.classify import _RULES, _Line, classify
from brim.shell.input.simple_commands import KnownNames


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PROGRAMS = _names(
    """
    [ [[ . : { } if then else elif fi for while until do done case esac in select function time !
    alias bg break builtin cd command continue echo eval exec exit export false fg hash help history
    jobs kill let printf pushd pwd read return set shift source test trap true type ulimit umask
    unset wait coproc
    apt apt-get at awk base64 bash bc brew cal cargo cat chmod chown clear cmp code column comm
    convert cp crontab curl cut date dd df diff dig display docker du egrep emacs env expand factor
    ffmpeg file find fmt fold free gcc gh git go grep gzip head hostname htop id identify import
    install ip join journalctl jq kubectl last ld less link ln locate look ls lsof make man mkdir
    more mount mv nano nc nice node nohup npm nvim open paste patch perl pip pip3 ping pkill ps
    python python3 pytest reboot rename reset rg rm rmdir rsync ruby say scp screen script sed seq
    service sh shuf shutdown size sleep sort split ssh stat strace strings su sudo sum systemctl tac
    tail tar tee tmux top touch tr tree uname uniq unzip uptime users uv vi vim w watch wc wget
    which who whoami write xargs yes zip zsh ll gst mytool
    """
)
FILES = _names(
    """
    file.txt notes.txt data.csv main.py src src/main.py tests docs README.md Makefile notes log.txt
    scripts/run.sh a b build.log server.log Übungen . .. / ~ /etc /etc/hosts /tmp ~/notes.txt
    """
)
METAS = _names(
    """
    help model models context request cost usage history reset compact undo retry edit pin recall
    rolling rolling-context tokens tokenize memory tree mcp goal norris route save resume sessions
    export config doctor quit q
    """
)
KNOWN = KnownNames(
    is_command=PROGRAMS.__contains__,
    exists=lambda path: path.rstrip("/") in FILES or path in FILES,
    metas=METAS,
)

COMMANDS = r"""
ls
ls -la
ls src
ls src tests docs
ls *.py
ls | wc -l
ll
gst
cd
cd ..
cd -
cd src
cd ~/projects
cd nowhere
pwd
git status
git log --oneline -5
git commit -m "fix the bug in the parser"
git commit -am 'this is it'
git commit -m "what's new?"
git checkout -b my-branch
git checkout main
git stash pop
git diff HEAD~1 -- src/main.py
git show HEAD:README.md
git rebase -i main
git push origin main
git push --force
git log --grep the
git log --author=me
git add .
git branch -d old
git clone https://example.org/a/b.git
git remote add origin git@example.org:a/b.git
make
make test
make clean
make all
make -j8
make clean build test
make CC=clang
time make
time ls -l
who
who am i
w
sort
sort file.txt
sort -u notes.txt
sort notes
sort < notes.txt
find . -name x
find . -name "*.py" -mtime -1
find src -type f
find / -size +100M
find
cat file.txt
cat notes.txt data.csv
cat notes
cat missing.txt
cat < file.txt > out.txt
cat /etc/hosts
cat -
head -n 5 file.txt
tail -f server.log
less README.md
grep the notes.txt
grep -r the .
grep -rn "how are you" src
grep TODO src
ps aux | grep my
ls | grep the
rg in src
history | grep make
history 10
kill 1234
kill -9 1234
kill %1
kill $(pidof server)
top
date
date +%F
date -d tomorrow
man git
man which
man 3 printf
help cd
help if
type which
which python
which nosuchthing
which python3 node
test -f x
test "$a" = b
[ -f x ] && echo yes
[[ $a == b ]]
cut -d , -f 1 data.csv
python main.py
python main.py fast run now
python -m venv .venv
python -c "print('this is the end')"
python3
python manage.py migrate
pytest
pytest tests/test_a.py -k the
pip install numpy
pip install numpy scipy pandas matplotlib
npm run build
npm install
docker compose up
docker ps -a
docker run -it ubuntu bash
docker exec -it es bash
kubectl get pods
kubectl get all
kubectl delete all --all
kubectl logs web --tail 10
systemctl restart nginx
sudo apt install vim
sudo apt update
sudo -u bob ls
sudo fdisk
sudo systemctl status nginx
apt install at
cargo test parser
go test ./...
uv run pytest
gh pr list
ssh me@example.org
ssh host uptime
scp a host:
rsync -av a/ b/
curl https://example.org
curl example.org
curl -s https://example.org/?a=1 | jq .
ping example.org
ip link set eth0 up
mkdir new
mkdir my
mkdir src tests docs more
mkdir 文档
cd Übungen
touch a b c
touch this
vim main.py
vim newfile
nano notes
cp a b
cp a new
mv notes.txt old.txt
mv notes.txt old
rm notes.txt
rm a b
rm -rf build
rm -rf build dist
ln -s a c
tar xzf backup.tgz
tar xf backup
unzip data.zip
chmod +x run.sh
echo hello
echo the quick brown fox is here
echo really?
echo hello, world
echo $PATH
echo "it's fine"
printf '%s\n' a b
say the build is done
A=1
A=1 make test
A=1 B="two words" ./run.sh
A=$(ls -l)
x=(1 2 3)
export PATH=$PATH:/opt/bin
export EDITOR=vim
set -x
set +x
set +u
set +o posix
echo ok; set +u
read x
read line
read x1
read -r line
read -p 'name? ' name
alias ll='ls -l'
unset A
source venv/bin/activate
. ./env.sh
: > file
: ${A:=1}
:
:(){ :|:& };:
./run.sh
./run.sh test
./gradlew clean build test
./configure && make && make install
../bin/tool --x
~/bin/tool
/usr/bin/env python
/etc/hosts
/etc
scripts/run.sh
$EDITOR notes.txt
exec $SHELL
"$EDITOR" notes.txt
\ls
(cd src && ls)
{ ls; pwd; }
for i in 1 2 3; do echo $i; done
for f in *.txt; do echo the $f is here; done
while true; do date; sleep 1; done
while read line; do echo $line; done < file.txt
if [ -f x ]; then echo yes; fi
if grep -q x file.txt; then echo y; fi
case $x in a) echo 1;; esac
f() { echo hi; }
function f { ls; }
((i++))
[[ -n $X && -f notes.txt ]]
i=0; while [ $i -lt 3 ]; do echo $i; i=$((i+1)); done
cat notes.txt | while read line; do echo $line; done
cd src && for f in *; do echo "$f"; done
ls; pwd
ls && pwd || true
ls &
sleep 5
sleep 5 && echo done
seq 1 10
seq 10 | xargs rm
echo a | sudo tee /etc/x
watch ls
watch -n 1 df -h
nohup ./run.sh &
nice -n 10 make
env
env A=1 ls
clear
sed -i s/a/b/ file.txt
awk '{print $1}' file.txt
awk '{ print the, me }' file.txt
wc -l src/*.py
du -sh .
df -h
diff a b
diff main.py src/main.py
ls 2>&1 | tail -3
ls >/dev/null
<notes.txt sort
yes | apt install vim
ls -l # list the files, please
open README.md
code .
tree src
mytool
mytool start
rename 's/a/b/' *.txt
crontab -l
""".strip().split("\n")

SENTENCES = r"""
find the largest file
find files larger than 10 MB
find bugs
find all python files
find the bug in main.py
who wrote this
who are you
make it shorter
make the tests pass
make me a sandwich
make a table of these numbers
make this faster
sudo make me a sandwich
sudo is a program
sudo vs su
test the parser
test parser
cat is an animal
cat notes.txt and explain it
cats are nice
kill the server on port 80
kill process on port 80
kill port 8080
which file is largest
which is better
which one
which python version
which model should I use
man in the middle attack
man page for ls
cut this text to ten words
date of the last commit?
date now
help me
install numpy
python is slow, why
python list comprehension
python vs ruby
top ten languages
top 10 languages
sort these names
sort words by length
sort notes.txt alphabetically
what is this
what's new
what does ls -l do?
whats the time
why does make fail
why
how do I exit vim
how are you?
explain
explain this
explain git rebase -i
Explain the output
Find the largest file
Make it so
List all files
hello
hi there
thanks
thank you
yes
yes please
yes, do it
no
ok
continue
go on
go ahead
go back
go build error: missing module
python 3.12 features
do it
do you know ls
then what
if you could make it shorter
if I run ls; then what happens
for each file print its name
for the record
while you are at it, add tests
until now it worked
case in point
select the best one
function that sorts a list
time flies
time complexity of quicksort
nice work
command not found
watch out
watch the logs
env variables
exec summary of the report
more
more examples
less is more
head of the table
tail the server log
tail of the distribution
history of rome
read the file main.py
read this
read main.py
read docs
read code carefully
read the docs +x
who am I
help is on the way
quit smoking
exit the editor
exit now
let me know
let us go
set x to five
source code
exit vim
true story
touch base with bob
type hints in python
split the function in two
join the two tables
paste the result here
look at main.py
write a haiku
write unit tests
write a function f(x) that doubles
last commit message
more of that, please
open the door
open source licenses
code review
convert this to json
convert inches
compare a.py with b.py
import os
import numpy as np
echo isn't working
git doesn't work
git's rebase
ls shows nothing, why?
ls -l shows nothing, why?
git status?
git status says nothing
git push --force is dangerous
rm -rf is dangerous
rm -rf / is dangerous
rm -rf * is dangerous
rm -rf the build folder
rm old notes
rm everything
rm all the logs
rm -rf build and start again
git add . and commit
kubectl delete all pods
docker stop all containers
cat main.py explain
curl https://example.org and summarize
reboot the server
reboot server
docker compose file for postgres with volumes
docker is running out of space
git commit message for this change
git (the tool) and svn
git, docker, make
ssh is slow
vim is better than emacs
node version manager
ruby on rails
bash scripting tutorial
go to the next step
./configure fails on mac
./configure fails
scripts/run.sh crashed
/etc/hosts is what?
/explain this function
$PATH is wrong, why is that
gti status
foo
foo bar | grep x
docs
README.md
src is messy
x = 5
x=5 is the answer
3 + 4
2+2
1. first do this
- a list item
* another one
> quoted text
> ls
(see above)
[1] what is this
"hello" means what
`git push` fails
:)
:-)
:D
...
@bob
#1 is best
# Title
https://example.org
error: something broke
Traceback (most recent call last):
{"a": 1}
<html>
SELECT * FROM users;
def f(x): return x
git 是什么
ls 怎么用
列出所有文件
最大的文件是哪个？
find die größte Datei
find größte Datei
sort diese Liste
make das kürzer
cat ist ein Tier
wie groß ist src
Was ist das?
warum schlägt der Test fehl
bitte lösche die Dateien
git wie geht das
quel est le plus grand fichier
qu'est-ce que c'est
make l'arbre
find el archivo más grande
как найти файл
find большой файл
cat これは何ですか
git log auf Deutsch erklärt
ls; what do these mean
cat is an animal; dogs are too
sort this list: a | b
I'd like to ls
don't
what’s up
git push.
make it so!
date and time formats
mytool gives me an error
file names with spaces
size of src
and now ls
the
a
""".strip().split("\n")

PASTES = {
    "cat <<EOF\nwhat is the answer?\nEOF": "command",
    "cat <<'EOF' > notes.txt\nit's the end, my friend\nEOF\n": "command",
    "cat <<EOF\nwhat is": "command",
    "for i in 1 2\ndo\n  echo $i\ndone": "command",
    "ls\npwd": "command",
    "# install\npip install numpy\nmake test": "command",
    "docker run \\\n  -it \\\n  ubuntu": "command",
    "git commit -m 'one\n\nthe second paragraph'": "command",
    "if true\nthen ls\nfi": "command",
    "f() {\n  echo the end\n}\nf": "command",
    "for f in *\ndo\n  echo done $f\ndone | sort > notes.txt\nls": "command",
    "for f in *; do rm $f; done\nwhat does this do?": "language",
    "why is this wrong\nfor f in *; do rm $f; done": "language",
    "ls; for each file print its name": "language",
    "f() { ls; }\nexplain": "language",
    "if true; then ls; fi is what I ran": "language",
    "git status\nwhat does this mean": "language",
    "git status\nexplain": "language",
    "git status\nOn branch main\nnothing to commit": "language",
    "Fix this:\n```python\nprint(1)\n```": "language",
    "```\nls\n```": "language",
    "make this work:\nls -l | wc": "language",
    "import os\nprint(os.getcwd())": "language",
    "#include <stdio.h>\nint main() { return 0; }": "language",
    "#!/bin/sh\nls": "language",
    "# Title\n\nSome text follows.": "language",
    '{\n  "a": 1\n}': "language",
    "$ git status\nOn branch main": "language",
    "Traceback (most recent call last):\n  File x": "language",
    "Dear all,\n\nls is a command.\n": "language",
    "find\nthe largest file": "language",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_commands(line: str) -> None:
    decision = classify(line, KNOWN)
    assert (decision.kind, decision.text) == ("command", line), decision.reason


@pytest.mark.parametrize("line", SENTENCES)
def test_sentences(line: str) -> None:
    decision = classify(line, KNOWN)
    assert (decision.kind, decision.text) == ("language", line), decision.reason


@pytest.mark.parametrize(("text", "expected"), PASTES.items())
def test_pastes(text: str, expected: str) -> None:
    decision = classify(text, KNOWN)
    assert (decision.kind, decision.text) == (expected, text), decision.reason


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Classification("nothing", "", "empty")),
        (" \t\n", Classification("nothing", "", "empty")),
        ("!", Classification("nothing", "", "nothing after !")),
        ("?", Classification("nothing", "", "nothing after ?")),
        ("!what is this", Classification("command", "what is this", "forced by !")),
        ("  ! ls -l", Classification("command", "ls -l", "forced by !")),
        ("?ls -l", Classification("language", "ls -l", "forced by ?")),
        ("? ls", Classification("language", "ls", "forced by ?")),
        (":model fast", Classification("meta", "model fast", "model is a meta command")),
        (":q", Classification("meta", "q", "q is a meta command")),
        ("/model a/b", Classification("meta", "model a/b", "model is a meta command")),
        (":modl fast", Classification("meta", "modl fast", "no such command")),
        (":mo", Classification("meta", "mo", "model, models")),
        (":m", Classification("meta", "m", "mcp, memory, model …")),
        (":Mo", Classification("meta", "Mo", "model, models")),
        ("help", Classification("meta", "help", "help is a meta command")),
        ("quit", Classification("meta", "quit", "quit is a meta command")),
        (" exit ", Classification("meta", "exit", "exit is a meta command")),
        ("exit 3", Classification("meta", "exit 3", "exit is a meta command")),
        ("!exit 3", Classification("command", "exit 3", "forced by !")),
        ("!!", Classification("meta", "!!", "press the up key for the last command")),
        ("!! ls", Classification("command", "! ls", "forced by !")),
        ("yes", Classification("language", "yes", "yes is an answer")),
        ("who am i", Classification("command", "who am i", "who is a command")),
        ("# a remark", Classification("language", "# a remark", "# is not a command")),
        ("f() { ls; }", Classification("command", "f() { ls; }", "shell code")),
        (
            ":goal find it\nand fix it",
            Classification("meta", "goal find it\nand fix it", "goal is a meta command"),
        ),
        (":w", Classification("meta", "w", "no such command")),
        (":model:model", Classification("meta", "model:model", "model, models")),
        (":wrod1", Classification("meta", "wrod1", "no such command")),
        (":wq!", Classification("meta", "wq!", "no such command")),
        ("/etc", Classification("command", "/etc", "/etc is a path")),
        ("/modl", Classification("command", "/modl", "/modl is a path")),
        ("/model/x", Classification("command", "/model/x", "/model/x is a path")),
        ("git status", Classification("command", "git status", "git is a command")),
        ("A=1", Classification("command", "A=1", "sets a variable")),
        ("find bugs", Classification("language", "find bugs", "bugs is not a file")),
        ("gti log", Classification("language", "gti log", "gti is not a command")),
        ("ls | gerp x", Classification("language", "ls | gerp x", "gerp is not a command")),
        ("make my day", Classification("language", "make my day", "reads like a sentence: my")),
        ("what is ls", Classification("language", "what is ls", "reads like a sentence")),
        ("git?", Classification("language", "git?", "git? is not a command")),
    ],
)
def test_classifications_have_a_reason(line: str, expected: Classification) -> None:
    assert classify(line, KNOWN) == expected


def test_a_block_of_fish_is_a_command_in_fish() -> None:
    fish = KnownNames({"end", "if", "test", "echo"}.__contains__, KNOWN.exists, METAS)
    for block in ("for x in a b; echo $x; end", "if test -f x\n  echo there\nend"):
        assert classify(block, fish).kind == "command"
        assert classify(block, KNOWN).kind == "language"
    assert classify("if that works, go to the end", fish).kind == "language"


def test_the_name_of_a_file_is_not_a_word_of_a_sentence() -> None:
    there = KnownNames(KNOWN.is_command, {"the", "my"}.__contains__, METAS)
    assert classify("cat the my", KNOWN).kind == "language"
    assert classify("cat the my", there).kind == "command"


def test_a_long_paste_is_classified_by_its_beginning_and_kept_whole() -> None:
    paste = "Look at this log:\n" + "error 'unclosed \"quotes $( and ( more\n" * 5_000
    assert classify(paste, KNOWN) == Classification("language", paste, "reads like a sentence")


def test_a_long_script_is_not_classified_by_half_a_word() -> None:
    for shift in range(9):
        assert (
            classify("\n".join([*["pwd"] * shift, *["git status"] * 500]), KNOWN).kind == "command"
        )


def test_a_very_long_word_is_classified() -> None:
    assert classify("make " + "很长" * 2_000, KNOWN).kind == "language"


def test_reasons_stay_short() -> None:
    assert len(classify("x" * 500, KNOWN).reason) < 40


def test_flipping_keeps_the_text() -> None:
    decision = classify("!ls", KNOWN)
    assert flip(decision) == Classification("language", "ls", "switched to language")
    assert flip(classify(":help", KNOWN)) == classify(":help", KNOWN)
    assert flip(classify("", KNOWN)) == classify("", KNOWN)


SIGNS = "!?:/'\"`\\()[]{}<>|&;$#=*~,. \n\t-"
WORDS = "$( <<EOF \nEOF ``` && for x in do git ls the find sudo if case a -l f() it's größe"
PIECES = st.sampled_from([*SIGNS, *WORDS.split(" ")])
LINES = st.one_of(st.text(), st.lists(PIECES).map("".join), st.lists(PIECES).map(" ".join))


@given(LINES)
def test_every_line_is_classified_and_flipping_twice_restores_it(line: str) -> None:
    decision = classify(line, KNOWN)
    assert decision.kind in ("command", "language", "meta", "nothing")
    assert decision.reason
    assert decision.text in line
    flips = decision.kind in ("command", "language")
    assert (flip(decision).kind != decision.kind) is flips
    assert flip(flip(decision)).kind == decision.kind


@given(LINES)
def test_a_prefix_always_wins(line: str) -> None:
    if line.strip() not in ("", "!"):
        assert classify("!" + line, KNOWN).kind == "command"
        assert classify("?" + line, KNOWN).kind == "language"


@given(LINES)
def test_a_line_that_starts_with_no_command_never_runs(line: str) -> None:
    no_names = KnownNames(lambda _: False, lambda _: False, METAS)
    if re.match(r"[a-z]+ [a-z]", line):
        assert classify(line, no_names).kind == "language"


def _rule(line: str) -> str:
    return next(
        rule.__name__.strip("_").removesuffix("_rule")
        for rule in _RULES
        if rule(_Line(line, KNOWN))
    )


def test_the_examples_of_the_page_are_true() -> None:
    page = Path(__file__).parents[2] / "docs/language-or-command.md"
    row = re.compile(r"^\| `(.+)` \| (command|language|meta) \| (\w+) \|$", re.MULTILINE)
    examples = [
        (line.replace("\\|", "|"), kind, rule)
        for line, kind, rule in row.findall(page.read_text("utf-8"))
    ]
    assert len(examples) > 40
    assert [(line, classify(line, KNOWN).kind, _rule(line)) for line, *_ in examples] == examples
