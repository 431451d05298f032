from brim.cli import main

main()
